/*
 * comm_gloo.cc - Gloo's own collectives, for bench/comm. Ranks read RANK and WORLD_SIZE, and meet
 * in the directory COMM_STORE.
 */
#include "peer.h"

#include <cstring>
#include <exception>
#include <functional>
#include <gloo/allgather.h>
#include <gloo/allreduce.h>
#include <gloo/allreduce_bcube.h>
#include <gloo/allreduce_halving_doubling.h>
#include <gloo/allreduce_ring.h>
#include <gloo/allreduce_ring_chunked.h>
#include <gloo/barrier.h>
#include <gloo/math.h>
#include <gloo/reduce_scatter.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/transport/tcp/device.h>
#include <memory>
#include <string>
#include <vector>

namespace
{

using Context = std::shared_ptr<gloo::Context>;

struct Peer : peer {
	Context context;
	std::function<void()> call;
};

int run_gloo_call(void *self)
{
	static_cast<Peer *>(static_cast<peer *>(self))->call();
	return 0;
}

int sync_gloo_ranks(void *self)
{
	gloo::BarrierOptions how(static_cast<Peer *>(static_cast<peer *>(self))->context);

	how.setTag(1);
	gloo::barrier(how);
	return 0;
}

int reduce_gloo_max(void *self, double *x)
{
	gloo::AllreduceOptions how(static_cast<Peer *>(static_cast<peer *>(self))->context);

	how.setOutput(x, 1);
	how.setReduceFunction(static_cast<void (*)(void *, const void *, const void *, size_t)>(
		gloo::max<double>));
	how.setTag(2);
	gloo::allreduce(how);
	return 0;
}

/* Runs collectives that take an options object. */
void gloo_all_reduce(Peer *p, gloo::AllreduceOptions::Algorithm algorithm)
{
	gloo::AllreduceOptions how(p->context);

	how.setAlgorithm(algorithm);
	how.setInput(static_cast<float *>(p->src), p->bytes / sizeof(float));
	how.setOutput(static_cast<float *>(p->dst), p->bytes / sizeof(float));
	how.setReduceFunction(static_cast<void (*)(void *, const void *, const void *, size_t)>(
		gloo::sum<float>));
	gloo::allreduce(how);
}

void gloo_all_gather(Peer *p)
{
	gloo::AllgatherOptions how(p->context);
	const size_t count = p->bytes / sizeof(float);

	how.setInput(static_cast<float *>(p->src), count / p->nranks);
	how.setOutput(static_cast<float *>(p->dst), count / p->nranks * p->nranks);
	gloo::allgather(how);
}

/* Runs classes that are made for one buffer, in which they leave the result. */
template <typename T, typename... Rest>
std::shared_ptr<gloo::Algorithm> make_algorithm(Peer *p, Rest... rest)
{
	const std::vector<float *> at{ static_cast<float *>(p->src) };

	return std::make_shared<T>(p->context, at, static_cast<int>(p->bytes / sizeof(float)),
	                           rest...);
}

using Algorithm = std::pair<const char *, std::function<std::function<void()>(Peer *)>>;

template <typename T> Algorithm list_in_place_algorithm(const char *name)
{
	return { name, [](Peer *p) -> std::function<void()> {
			auto algorithm = make_algorithm<T>(p);

			return [algorithm] { algorithm->run(); };
		} };
}

std::vector<Algorithm> list_algorithms(const std::string &kind)
{
	using Options = gloo::detail::AllreduceOptionsImpl;

	if (kind == "all_gather")
		return { { "allgather", [](Peer *p) { return [p] { gloo_all_gather(p); }; } } };
	if (kind == "reduce_scatter")
		return { { "halving-doubling", [](Peer *p) -> std::function<void()> {
				  const int each =
					  static_cast<int>(p->bytes / sizeof(float)) / p->nranks;
				  auto algorithm =
					  make_algorithm<gloo::ReduceScatterHalvingDoubling<float>>(
						  p, std::vector<int>(p->nranks, each));

				  return [algorithm] { algorithm->run(); };
			  } } };
	return {
		{ "allreduce-ring",
		  [](Peer *p) { return [p] { gloo_all_reduce(p, Options::RING); }; } },
		{ "allreduce-bcube",
		  [](Peer *p) { return [p] { gloo_all_reduce(p, Options::BCUBE); }; } },
		list_in_place_algorithm<gloo::AllreduceHalvingDoubling<float>>("halving-doubling"),
		list_in_place_algorithm<gloo::AllreduceBcube<float>>("bcube"),
		list_in_place_algorithm<gloo::AllreduceRing<float>>("ring"),
		list_in_place_algorithm<gloo::AllreduceRingChunked<float>>("ring-chunked"),
	};
}

int read_env_number(const char *name)
{
	const char *text = std::getenv(name);

	return text ? std::atoi(text) : 0;
}

int measure_algorithms(char **argv)
{
	Peer p{};
	measure_target c{};
	gloo::rendezvous::FileStore store(std::getenv("COMM_STORE"));
	auto device = gloo::transport::tcp::CreateDevice(gloo::transport::tcp::attr("127.0.0.1"));

	peer_parse_arguments(&p, argv);
	p.rank = read_env_number("RANK");
	p.nranks = read_env_number("WORLD_SIZE");
	auto context = std::make_shared<gloo::rendezvous::Context>(p.rank, p.nranks);
	context->connectFullMesh(store, device);
	p.context = context;
	c.run = run_gloo_call;
	c.barrier = sync_gloo_ranks;
	c.reduce_max = reduce_gloo_max;
	for (const auto &algorithm : list_algorithms(p.kind))
		for (p.bytes = 4; p.bytes <= p.max_bytes; p.bytes *= 4) {
			if (std::strcmp(p.kind, "all_reduce") &&
			    p.bytes / sizeof(float) < size_t(p.nranks))
				continue;
			p.call = algorithm.second(&p);
			peer_time_call(&p, &c, algorithm.first);
			p.call = nullptr;
		}
	sync_gloo_ranks(&p);
	return 0;
}

} /* namespace */

int main(int argc, char **argv)
{
	if (argc != 4 || !std::getenv("COMM_STORE"))
		return 2;
	try {
		return measure_algorithms(argv);
	} catch (const std::exception &e) {
		std::fprintf(stderr, "comm_gloo: %s\n", e.what());
		return 1;
	}
}
