/*
 * cpu_backward.c - the training ops on the CPU device, bit for bit against the scalar reference of
 * lockstep, on every instruction set of this processor: uneven shapes, strides and addresses,
 * several sequences, Partials, empty rows, NaN.
 */
#include "core/base/accumulator.h"
#include "cpu_training.h"

#include <tessera/model.h>

enum { ROUNDS = 24 };

START_TEST(weight_gradients)
{
	static struct sums s;
	struct tess_view in[2], out, y;

	for (int i = 0; i < 3 * ROUNDS; i++) {
		int64_t n = draw_from(1, i % 3 ? 40 : 430), k = draw_from(1, i % 3 ? 150 : 20);

		make_token_sums(&s, i % 4);
		if (i % 4 == 2 && !s.nodes)
			continue;
		in[0] = make_test_rows(s.rows, k, i % 5 == 0);
		in[1] = make_test_rows(s.rows, n, i % 5 == 1);
		out = y = i / 4 % 2 ? make_out(&s, k, n) : make_out(&s, n, k);
		if (i / 4 % 2) { /* as [out, in] */
			int a = out.ndim - 2;

			out.shape[a] = y.shape[a + 1], out.shape[a + 1] = y.shape[a];
			out.stride[a] = y.stride[a + 1], out.stride[a + 1] = y.stride[a];
		}
		struct tess_op op =
			make_summed_op(TESS_OP_LINEAR_DW, &s, in, 2, &out, TESS_TOKENS_NUMS);
		compare_op(&op);
		refuse_changes(&op, true);
		op.nnum = TESS_LINEAR_DW_NUMS;
		s.num[TESS_LINEAR_DW_DTYPE] = TESS_F32;
		s.num[TESS_LINEAR_DW_MATH] = TESS_BF16;
		compare_op(&op);
		s.num[TESS_LINEAR_DW_MATH] = TESS_F16;
		expect_refused_op(&op, "products are of f32, or of bf16");
		free_views(in, 2);
		free_views(&out, 1);
	}
}
END_TEST

/* Checks parts of the heads of a weight, as stored or turned. */
START_TEST(weight_gradients_of_heads)
{
	static struct sums s;
	struct tess_view in[2], out;

	for (int i = 0; i < ROUNDS; i++) {
		int64_t heads = draw_from(1, 5), n = draw_from(1, 40), k = draw_from(1, 40),
			rest = draw_from(0, 6), each = n + draw_from(0, 9), inner, a;

		make_token_sums(&s, i % 4);
		if (i % 4 == 2 && !s.nodes)
			continue;
		in[0] = make_test_rows(s.rows, heads * (k + rest), i % 5 == 0);
		in[1] = make_test_rows(s.rows, heads * (n + rest), false);
		out = make_out(&s, heads * each, k); /* the first n rows of each head */
		a = out.ndim++ - 2;
		inner = out.stride[a];
		memcpy(out.shape + a, (int64_t[]){ heads, n, k }, 3 * sizeof inner);
		memcpy(out.stride + a, (int64_t[]){ each * inner, inner, 1 }, 3 * sizeof inner);
		if (i / 4 % 2) { /* swaps g and x */
			struct tess_view x = in[0];

			in[0] = in[1], in[1] = x;
			out.shape[a + 1] = k, out.shape[a + 2] = n;
			out.stride[a + 1] = 1, out.stride[a + 2] = inner;
		}
		struct tess_op op =
			make_summed_op(TESS_OP_HEAD_LINEAR_DW, &s, in, 2, &out, TESS_TOKENS_NUMS);
		compare_op(&op);
		for (int j = 0; j < 3; j++) { /* another number of heads, or size of N or K */
			out.shape[a + j]++;
			ck_assert_int_eq(cpu_check_op(&op), TESS_ENOTSUP);
			out.shape[a + j]--;
		}
		free_views(in, 2);
		free_views(&out, 1);
	}
}
END_TEST

/* Checks several gradients: units of the tree have a range of each. */
START_TEST(input_gradients)
{
	static struct sums s;
	struct cpu_weights w[3];
	struct tess_view in[6], out;

	for (int i = 0; i < 2 * ROUNDS; i++) {
		int64_t rows = draw_from(0, i % 6 ? 20 : 220 / THIN), k = draw_from(1, 150);
		int32_t n = (int32_t)draw_from(1, 3);

		memset(&s, 0, sizeof s);
		for (int t = 0; t < 2 - i % 2; t++) { /* consecutive trees */
			int64_t units = draw_from(1, 12), lo = i % 3 ? 0 : draw_from(0, units),
				hi = i % 3 ? units : draw_from(lo, units);

			s.tree[s.ntree++] = (struct tess_tree){ units, lo, hi, s.nterm, n };
			s.nodes += i % 3 ? 0 : tess_node_count(units, lo, hi);
			for (int32_t j = 0; j < n; j++, s.nterm++) {
				int64_t *bound = s.bound[s.nterm];

				bound[0] = t ? s.bound[j][BOUNDS - 1] : draw_from(0, 2);
				for (int64_t u = 0; u < hi - lo; u++)
					bound[u + 1] = bound[u] + draw_from(0, i % 5 ? 9 : 300);
				s.bound[j][BOUNDS - 1] = bound[hi - lo];
				s.term[s.nterm] = (struct tess_term){ j, 0, bound };
			}
		}
		if (i % 3 == 0 && !s.nodes)
			continue;
		for (int32_t j = 0; j < n; j++) {
			int64_t length = s.bound[j][BOUNDS - 1] + draw_from(0, 2);

			in[j] = make_test_rows(rows, length, i % 7 == 0);
			w[j] = cpu_make_weights(cpu_choose_dtype(i + j), (length + 1) * (k + 3));
			in[n + j] = i % 4 ? cpu_make_matrix(&w[j], length, k, k + 3, 1)
			                  : cpu_make_matrix(&w[j], length, k, 1, length + 1);
		}
		out = make_out(&s, rows, k);
		struct tess_op op = make_summed_op(TESS_OP_LINEAR_DX, &s, in, 2 * n, &out, 0);
		compare_op(&op);
		refuse_changes(&op, true);
		op.nnum = TESS_LINEAR_NUMS;
		s.num[TESS_LINEAR_MATH] = TESS_BF16;
		compare_op(&op);
		s.num[TESS_LINEAR_MATH] = TESS_F16;
		expect_refused_op(&op, "dtype of its products, f32 or bf16");
		free_views(in, n);
		free_views(&out, 1);
		for (int32_t j = 0; j < n; j++)
			cpu_free_weights(&w[j]);
	}
}
END_TEST

START_TEST(vector_gradients)
{
	static struct sums s;
	struct tess_view in[2], out;

	for (int i = 0; i < 2 * ROUNDS; i++) {
		int64_t n = draw_from(1, 200), v = draw_from(1, 60);

		make_token_sums(&s, i % 4);
		if (i % 4 == 2 && !s.nodes)
			continue;
		int32_t *id = calloc((size_t)s.rows + 1, sizeof *id);

		in[0] = make_test_rows(s.rows, n, i % 5 == 0);
		out = make_out(&s, 1, n);
		struct tess_op op =
			make_summed_op(TESS_OP_BIAS_DW, &s, in, 1, &out, TESS_TOKENS_NUMS);
		compare_op(&op);
		refuse_changes(&op, false);
		free_views(&out, 1);

		for (int64_t t = 0; t < s.rows; t++)
			id[t] = (int32_t)draw_from(8, 14 + v); /* some are on other ranks */
		in[1] = in[0];
		in[0] = cpu_make_list(id, TESS_I32, s.rows);
		s.num[TESS_TOKENS_NUMS + TESS_EMBED_FIRST] = 10;
		out = make_out(&s, v, n);
		op = make_summed_op(TESS_OP_EMBED_DW, &s, in, 2, &out,
		                    TESS_TOKENS_NUMS + TESS_EMBED_NUMS);
		compare_op(&op);
		refuse_changes(&op, false);
		free_views(&out, 1);
		free_views(in, 2);
	}
}
END_TEST

START_TEST(norm_gradients)
{
	static struct sums s, norm;
	struct tess_view in[3], out;

	for (int i = 0; i < 2 * ROUNDS; i++) {
		int64_t runs = i % 3 ? 1 : draw_from(1, 5), each = draw_from(1, 130);
		double num[TESS_NORM_NUMS] = { i % 2 ? TESS_RMS : TESS_LAYER, 1e-5,
			                       i % 3 ? 0 : (double)each, i / 2 % 2 };
		struct cpu_weights w;
		struct tess_view *g = &in[2];

		make_token_sums(&s, i % 4);
		if (i % 4 == 2 && !s.nodes)
			continue;
		w = cpu_make_weights(cpu_choose_dtype(i), each);
		memset(&norm, 0, sizeof norm);
		append_tree(&norm, i % 3 ? tess_up(each, 17) : 1, 0, i % 3 ? tess_up(each, 17) : 1,
		            0, i % 3 ? 17 : each, each);
		in[0] = make_test_rows(s.rows, runs * each, i % 7 == 0);
		in[1] = cpu_make_list(w.data, w.dtype, each);
		*g = make_test_rows(s.rows, runs * each, i % 7 == 1);
		for (int64_t k = 0; i % 5 == 4 && k < cpu_count_elements(g); k++)
			((float *)g->data)[k] = -0x1p-149f; /* products that round to -0 */
		for (int64_t k = 0; i % 5 == 4 && k < cpu_count_elements(&in[0]); k++)
			((float *)in[0].data)[k] = fabsf(((float *)in[0].data)[k]);
		memcpy(norm.num, num, sizeof num);
		out = i % 4 == 3 ? *g : make_test_rows(s.rows, runs * each, false);
		struct tess_op op =
			make_summed_op(TESS_OP_NORM_D, &norm, in, 3, &out, TESS_NORM_NUMS);
		compare_op(&op);
		refuse_changes(&op, true);
		if (i % 4 != 3)
			free_views(&out, 1);

		/* the tree of the norm precedes those of the tokens */
		for (int32_t t = 0; t < s.ntree; t++)
			s.tree[s.ntree - t] = s.tree[s.ntree - 1 - t];
		s.tree[0] = norm.tree[0];
		s.tree[0].first = s.nterm;
		s.term[s.nterm++] = norm.term[0];
		s.ntree++;
		memcpy(s.num + TESS_TOKENS_NUMS, num, sizeof num);
		in[1] = *g;
		out = make_out(&s, 1, runs * each);
		op = make_summed_op(TESS_OP_NORM_DW, &s, in, 2, &out,
		                    TESS_TOKENS_NUMS + TESS_NORM_NUMS);
		compare_op(&op);
		refuse_changes(&op, true);
		free_views(&out, 1);
		free_views(in, 2);
		cpu_free_weights(&w);
	}
}
END_TEST

START_TEST(sums_of_heads_and_sequences)
{
	static struct sums s;
	struct tess_view in, out;

	for (int i = 0; i < 2 * ROUNDS; i++) {
		int64_t group = draw_from(1, 9), width = draw_from(1, 40), rows = draw_from(0, 9);
		int64_t runs = i % 2 ? 1 : draw_from(1, 4), lo = i % 2 ? draw_from(0, 5) : 0;
		int64_t n = lo + group + (i % 2 ? draw_from(0, 4) : 0);

		memset(&s, 0, sizeof s);
		append_tree(&s, n, lo, lo + group, 0, 1, group);
		s.nodes = i % 2 ? tess_node_count(n, lo, lo + group) : 0;
		s.num[TESS_HEAD_SUM_WIDTH] = (double)width;
		s.num[TESS_HEAD_SUM_GROUP] = (double)group;
		in = make_test_rows(rows, runs * group * width, i % 5 == 0);
		out = make_out(&s, rows, runs * width);
		struct tess_op op =
			make_summed_op(TESS_OP_HEAD_SUM, &s, &in, 1, &out, TESS_HEAD_SUM_NUMS);
		compare_op(&op);
		refuse_changes(&op, true);
		free_views(&in, 1);
		free_views(&out, 1);

		s.num[TESS_TOKENS_SEQUENCES] = (double)n;
		s.num[TESS_TOKENS_FIRST] = (double)lo;
		in = make_test_rows(group, 3 * width, i % 5 == 0);
		out = make_out(&s, 1, 3 * width);
		op = cpu_make_op(TESS_OP_SEQUENCE_SUM, &in, 1, &out, s.num, TESS_TOKENS_NUMS);
		compare_op(&op);
		refuse_changes(&op, false);
		free_views(&in, 1);
		free_views(&out, 1);
	}
}
END_TEST

/* ---- elementwise */

START_TEST(gate_gradients)
{
	struct tess_view in[3], out[2];

	for (int i = 0; i < 4 * ROUNDS; i++) {
		double activation = TESS_SILU + i % 5;
		int64_t rows = draw_from(0, 9), n = draw_from(1, 90);
		bool gated = i / 5 % 2, in_place = i / 10 % 2;
		struct tess_op op = cpu_make_op(TESS_OP_GLU_D, in, 3, out, &activation, 1);

		for (int j = 0; j < 3; j++)
			in[j] = make_test_rows(rows, n, i % 3 == 0);
		if (rows)
			((float *)in[0].data)[0] = 0;
		for (int64_t k = 1; rows && k < n; k += 3) /* large values, too */
			((float *)in[0].data)[k] *= 100;
		out[0] = in_place ? in[0] : make_test_rows(rows, n, false);
		out[1] = in_place ? in[2] : make_test_rows(rows, n, false);
		struct tess_view b = in[1], db = out[1];

		if (!gated)
			in[1] = out[1] = (struct tess_view){ 0 };
		op.nout = 2;
		compare_op(&op);
		refuse_changes(&op, true);
		in[1] = b;
		free_views(in, 3);
		if (!in_place)
			free(out[0].data), free(db.data);
	}
}
END_TEST

START_TEST(losses)
{
	static struct sums s;

	for (int i = 0; i < 2 * ROUNDS; i++) {
		int64_t rows = draw_from(0, 12), n = draw_from(1, i % 4 ? 90 : 900);
		int64_t units = draw_from(1, n < 40 ? n : 40), unit = tess_up(n, units), lo, hi;
		struct tess_view z = make_test_rows(rows, n, i % 5 == 0), of[5], out, dz;
		struct tess_op op = cpu_make_op(TESS_OP_LOSS_MAX, &z, 1, &of[1], NULL, 0);
		int32_t label[12];
		double first = 7;
		float count = 5;

		units = tess_up(n, unit);
		lo = i % 2 ? draw_from(0, units - 1) : 0;
		hi = i % 2 ? draw_from(lo + 1, units) : units;
		memset(&s, 0, sizeof s);
		append_tree(&s, units, lo, hi, i % 2 ? 0 : 0, unit, n);
		s.nodes = i % 2 ? tess_node_count(units, lo, hi) : 0;
		for (int64_t t = 0; t < rows; t++)
			label[t] = draw_from(0, 3) ? (int32_t)draw_from(6, n + 8) : -100;
		for (int64_t k = 0; i % 7 == 3 && k < n && rows; k++)
			((float *)z.data)[k] = k % 2 ? -0.0f : -INFINITY;
		of[0] = z;
		of[1] = make_test_rows(rows, 1, false);
		compare_op(&op);
		refuse_changes(&op, true);
		scalar_run(&op);

		of[2] = make_out(&s, rows, 1);
		op = make_summed_op(TESS_OP_LOSS_SUM, &s, of, 2, &of[2], 0);
		compare_op(&op);
		refuse_changes(&op, true);

		struct tess_view picked[2] = { z, cpu_make_list(label, TESS_I32, rows) };

		out = make_out(&s, rows, 1);
		op = make_summed_op(TESS_OP_LOSS_PICK, &s, picked, 2, &out, 1);
		op.num = &first;
		compare_op(&op);
		free_views(&out, 1);

		free_views(&of[2], 1);
		of[2] = make_test_rows(rows, 1, false);
		for (int64_t t = 0; t < rows; t++)
			((float *)of[2].data)[t * of[2].stride[0]] =
				1 + (float)draw_from(0, 900) / 7;
		out = make_test_rows(rows, 1, false);
		struct tess_view lost[4] = { of[1], of[2], of[1], picked[1] };

		op = cpu_make_op(TESS_OP_LOSS, lost, 4, &out, NULL, 0);
		compare_op(&op);
		refuse_changes(&op, true);

		of[3] = picked[1];
		of[4] = cpu_make_list(&count, TESS_F32, 1);
		dz = i % 3 ? z : make_test_rows(rows, n, false);
		op = cpu_make_op(TESS_OP_LOSS_D, of, 5, &dz, &first, 1);
		compare_op(&op);
		refuse_changes(&op, true);
		if (dz.data != z.data)
			free_views(&dz, 1);
		free_views(&out, 1);
		free_views(of, 3);
	}
}
END_TEST

START_TEST(updates)
{
	static const int32_t types[] = { 0, TESS_BF16, TESS_F16 };

	for (int i = 0; i < ROUNDS; i++) {
		int64_t n = i % 4 ? draw_from(0, 600) : 40000;
		double adamw[TESS_ADAMW_NUMS] = {
			1e-3, 0.9, 0.95, 1e-8, 0.1, 1 - 0.9 * 0.9, 1 - 0.95 * 0.95, 0.37
		};
		double sgd[TESS_SGD_NUMS] = { 0.03, 0.9, 0.01, 0.37 };
		struct tess_view g, out[OUTS];
		struct tess_op op = cpu_make_op(TESS_OP_ADAMW, &g, 1, out, adamw, TESS_ADAMW_NUMS);

		g = cpu_make_list(make_test_rows(1, n, i % 3 == 0).data, TESS_F32, n);
		for (int j = 0; j < OUTS; j++)
			out[j] = cpu_make_list(cpu_make_floats(n), j == 3 ? types[i % 3] : TESS_F32,
			                       n);
		for (int64_t k = 0; k < n; k++) {
			((float *)out[0].data)[k] *= k % 5 ? 1 : 1e-5f;
			((float *)out[2].data)[k] = fabsf(((float *)out[2].data)[k]);
		}
		op.nout = 4;
		void *rounded = out[3].data;

		if (!types[i % 3])
			out[3] = (struct tess_view){ 0 };
		compare_op(&op);
		refuse_changes(&op, true);

		struct tess_view with[3] = { out[0], i % 2 ? out[1] : (struct tess_view){ 0 },
			                     out[3] };

		op = cpu_make_op(TESS_OP_SGD, &g, 1, with, sgd, TESS_SGD_NUMS);
		op.nout = 3;
		compare_op(&op);
		refuse_changes(&op, true);
		free(rounded);
		free_views(out, 3);
		free(g.data);
	}
}
END_TEST

/* Compares with the exact sum of the host, another implementation. */
START_TEST(squares)
{
	enum { N = 100003 };
	float *x = cpu_make_floats(N);
	struct cpu_devices d = { 0 };

	for (int i = 0; i < N; i++)
		if (i % 3)
			x[i] = ldexpf(x[i], (int)draw_from(-140, 120));
	x[5] = 0x1.fffffep127f;
	while (cpu_open_next(&d)) {
		for (int i = 0; i < 6; i++) {
			int64_t n = (const int64_t[]){ 0, 1, 127, 40000, N, N }[i];
			struct tess_accumulator want = { 0 };
			int64_t got[TESS_ACCUMULATOR_FIELDS];
			struct tess_view in = cpu_make_list(x, TESS_F32, n),
					 out = cpu_make_list(got, TESS_I64,
			                                     TESS_ACCUMULATOR_FIELDS);
			struct tess_op op = cpu_make_op(TESS_OP_SQUARES, &in, 1, &out, NULL, 0);

			x[9] = i == 5 ? NAN : 1;
			x[N - 1] = i == 5 ? -INFINITY : 1;
			tess_accumulator_add_squares(&want, x, 1000);
			memcpy(got, &want, sizeof got); /* the sum is added to it */
			tess_accumulator_add_squares(&want, x, n);
			cpu_run_op(d.now, &op);
			MUST(!memcmp(got, &want, sizeof got));
			refuse_changes(&op, false);
		}
	}
	free(x);
}
END_TEST

SUITE_MAIN("cpu_backward", squares, weight_gradients, weight_gradients_of_heads, input_gradients,
           vector_gradients, norm_gradients, sums_of_heads_and_sequences, gate_gradients, losses,
           updates)
