#include "hf/file_dtype.h"

#include <stddef.h>
#include <string.h>

static const struct tess_file_dtype types[] = {
	{ "F32", 32, TESS_F32 }, { "BF16", 16, TESS_BF16 }, { "F16", 16, TESS_F16 },
	{ "F64", 64, TESS_F64 }, { "I64", 64, TESS_I64 },   { "I32", 32, TESS_I32 },
	{ "I8", 8, TESS_I8 },    { "U8", 8, TESS_U8 },      { "BOOL", 8, 0 },
	{ "I16", 16, 0 },        { "U16", 16, 0 },          { "U32", 32, 0 },
	{ "U64", 64, 0 },        { "C64", 64, 0 },          { "F8_E4M3", 8, 0 },
	{ "F8_E5M2", 8, 0 },     { "F8_E8M0", 8, 0 },       { "F8_E4M3FNUZ", 8, 0 },
	{ "F8_E5M2FNUZ", 8, 0 }, { "F6_E2M3", 6, 0 },       { "F6_E3M2", 6, 0 },
	{ "F4", 4, 0 },
};
enum { NTYPES = sizeof types / sizeof *types };

const struct tess_file_dtype *tess_file_dtype_by_name(const char *name)
{
	for (int i = 0; i < NTYPES; i++)
		if (!strcmp(types[i].name, name))
			return &types[i];
	return NULL;
}

const struct tess_file_dtype *tess_file_dtype_of(int32_t dtype)
{
	for (int i = 0; i < NTYPES; i++)
		if (dtype && types[i].dtype == dtype)
			return &types[i];
	return NULL;
}
