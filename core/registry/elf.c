/* elf.c - checks that a file is a shared object for this machine, with clear messages. */
#include "core/registry/file.h"

#include "core/base/status.h"

#include <dlfcn.h>
#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const struct machine {
	const char *name;
	unsigned number;
} machines[] = {
	{ "x86-64", EM_X86_64 }, { "i386", EM_386 },     { "AArch64", EM_AARCH64 },
	{ "ARM", EM_ARM },       { "RISC-V", EM_RISCV }, { "POWER", EM_PPC64 },
	{ "s390x", EM_S390 },
};

/* Describes the machine of a header; class, byte order and machine have fixed offsets. */
static const char *format_machine(const ElfW(Ehdr) * head, bool foreign, char text[static 48])
{
	unsigned number = foreign ? __builtin_bswap16(head->e_machine) : head->e_machine;
	int bits = head->e_ident[EI_CLASS] == ELFCLASS64 ? 64 : 32;
	const char *name = NULL;

	for (size_t i = 0; i < sizeof machines / sizeof *machines; i++)
		if (machines[i].number == number)
			name = machines[i].name;
	if (name)
		snprintf(text, 48, "%s (%d bits)", name, bits);
	else
		snprintf(text, 48, "ELF machine %u (%d bits)", number, bits);
	return text;
}

/* Compares a header with that of this library, as the loader has mapped it. */
static tess_status compare_machine(const ElfW(Ehdr) * other)
{
	const ElfW(Ehdr) * own;
	char text[2][48];
	bool foreign;
	Dl_info info;

	if (!dladdr((void *)(uintptr_t)compare_machine, &info))
		return TESS_OK;
	own = info.dli_fbase;
	foreign = other->e_ident[EI_DATA] != own->e_ident[EI_DATA];
	if (other->e_ident[EI_CLASS] == own->e_ident[EI_CLASS] && !foreign &&
	    other->e_machine == own->e_machine)
		return TESS_OK;
	return tess_fail(TESS_EABI, "built for %s, this process is %s",
	                 format_machine(other, foreign, text[0]),
	                 format_machine(own, false, text[1]));
}

/* Checks that segments end inside the file: access beyond would raise SIGBUS. */
static tess_status check_segments(int fd, const ElfW(Ehdr) * head, uint64_t size)
{
	for (unsigned i = 0; i < head->e_phnum; i++) {
		ElfW(Phdr) part;
		uint64_t end;

		if (head->e_phentsize != sizeof part ||
		    pread(fd, &part, sizeof part, (off_t)(head->e_phoff + i * sizeof part)) !=
		            (ssize_t)sizeof part)
			return tess_fail(
				TESS_EABI,
				"truncated or damaged: %llu bytes, without program header %u",
				(unsigned long long)size, i);
		if (part.p_type != PT_LOAD)
			continue;
		if (__builtin_add_overflow((uint64_t)part.p_offset, (uint64_t)part.p_filesz,
		                           &end) ||
		    end > size)
			return tess_fail(
				TESS_EABI,
				"truncated or damaged: %llu bytes, and segment %u ends at %llu",
				(unsigned long long)size, i, (unsigned long long)end);
	}
	return TESS_OK;
}

static tess_status check_header(int fd)
{
	ElfW(Ehdr) head;
	struct stat about;
	tess_status st;
	ssize_t n;

	memset(&head, 0, sizeof head);
	if (fstat(fd, &about) || (n = pread(fd, &head, sizeof head, 0)) < 0)
		return tess_fail(TESS_EIO, "%s", strerror(errno));
	if (n == 0)
		return tess_fail(TESS_EABI, "the file is empty");
	if (n < SELFMAG || memcmp(head.e_ident, ELFMAG, SELFMAG) != 0)
		return tess_fail(TESS_EABI, "not a shared object: it has no ELF header");
	if (n < (ssize_t)sizeof head && head.e_ident[EI_CLASS] != ELFCLASS32)
		return tess_fail(TESS_EABI, "truncated: %zd bytes", n);
	st = compare_machine(&head);
	if (st)
		return st;
	if (head.e_type != ET_DYN)
		return tess_fail(TESS_EABI,
		                 "an ELF file, but not a shared object; link it with -shared");
	return check_segments(fd, &head, (uint64_t)about.st_size);
}

tess_status tess_file_check_elf(const char *real)
{
	int fd = open(real, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	tess_status st;

	if (fd < 0)
		return tess_fail(errno == EACCES ? TESS_EPERM : TESS_EIO, "%s", strerror(errno));
	st = check_header(fd);
	close(fd);
	return st;
}
