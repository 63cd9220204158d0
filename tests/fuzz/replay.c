/* SPDX-License-Identifier: PostgreSQL */
/*
 * A target without libFuzzer: replay CORPUS [ROUNDS [SEED]] runs every input of a corpus, a line of hexadecimal
 * digits each, and then ROUNDS random changes of them.
 */
#include "fuzz.h"

#define LONGEST 4096

typedef struct Input
{
	size_t		size;
	uint8_t		bytes[LONGEST];
} Input;

static uint64_t random_state;

/* SplitMix64 */
static uint64_t
draw(uint64_t n)
{
	uint64_t	z = random_state += UINT64_C(0x9e3779b97f4a7c15);

	z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
	z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
	return (z ^ (z >> 31)) % n;
}

static void
run(const Input *input)
{
	/* a copy of exactly the size, so that a read beyond it is seen */
	uint8_t    *copy = allocate(input->size);

	memcpy(copy, input->bytes, input->size);
	(void) LLVMFuzzerTestOneInput(copy, input->size);
	free(copy);
}

static int
read_line(FILE *file, Input *input)
{
	unsigned int byte;
	int			c;

	input->size = 0;
	while (input->size < LONGEST && fscanf(file, "%2x", &byte) == 1)
	{
		input->bytes[input->size++] = (uint8_t) byte;
		c = fgetc(file);
		if (c == '\n' || c == EOF)
			return 1;
		ungetc(c, file);
	}
	return input->size > 0;
}

static void
change(Input *input, const Input *other)
{
	size_t		at = input->size > 0 ? draw(input->size) : 0;
	size_t		n;

	switch (draw(6))
	{
		case 0:
			if (input->size > 0)
				input->bytes[at] ^= (uint8_t) (1 << draw(8));
			break;
		case 1:
			if (input->size > 0)
				input->bytes[at] = (uint8_t) draw(256);
			break;
		case 2:
			input->size = at;
			break;
		case 3:
			n = draw(8);
			if (input->size + n > LONGEST)
				break;
			memmove(input->bytes + at + n, input->bytes + at, input->size - at);
			input->size += n;
			break;
		case 4:
			n = draw(input->size - at + 1);
			memmove(input->bytes + at, input->bytes + at + n, input->size - at - n);
			input->size -= n;
			break;
		default:
			n = other->size < LONGEST - at ? other->size : LONGEST - at;
			memcpy(input->bytes + at, other->bytes, n);
			if (at + n > input->size)
				input->size = at + n;
			break;
	}
}

int
main(int argc, char **argv)
{
	FILE	   *file = argc > 1 ? fopen(argv[1], "r") : NULL;
	long		rounds = argc > 2 ? atol(argv[2]) : 0;
	Input	   *inputs = NULL;
	Input		input;
	size_t		n = 0;

	if (file == NULL)
	{
		fprintf(stderr, "usage: replay CORPUS [ROUNDS [SEED]]\n");
		return 2;
	}
	random_state = argc > 3 ? (uint64_t) atoll(argv[3]) : 1;
	while (read_line(file, &input))
	{
		run(&input);
		inputs = realloc(inputs, (n + 1) * sizeof(Input));
		REQUIRE(inputs != NULL);
		inputs[n++] = input;
	}
	fclose(file);
	for (long i = 0; n > 0 && i < rounds; i++)
	{
		input = inputs[draw(n)];
		for (uint64_t changes = 1 + draw(4); changes > 0; changes--)
			change(&input, &inputs[draw(n)]);
		run(&input);
	}
	free(inputs);
	printf("%zu inputs, %ld changed\n", n, rounds);
	return 0;
}
