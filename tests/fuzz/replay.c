/* SPDX-License-Identifier: Apache-2.0 */
/* Runs a target over files and folders of inputs, without libFuzzer: for builds by any compiler. */
#include <dirent.h>
#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static unsigned nr_runs;

static void run_file(const char *path, size_t n)
{
	FILE *f = fopen(path, "rb");
	uint8_t *data = malloc(n + 1);

	if (!f || !data || fread(data, 1, n, f) != n) {
		perror(path);
		exit(1);
	}
	fclose(f);
	(void)LLVMFuzzerTestOneInput(data, n);
	free(data);
	nr_runs++;
}

static void run_folder(const char *path)
{
	DIR *dir = opendir(path);
	struct dirent *e;

	while (dir && (e = readdir(dir))) {
		char at[PATH_MAX];
		struct stat st;

		if ((size_t)snprintf(at, sizeof(at), "%s/%s", path, e->d_name) < sizeof(at) &&
		    stat(at, &st) == 0 && S_ISREG(st.st_mode))
			run_file(at, (size_t)st.st_size);
	}
	if (dir)
		closedir(dir);
}

int main(int argc, char **argv)
{
	for (int i = 1; i < argc; i++)
		run_folder(argv[i]);
	(void)LLVMFuzzerTestOneInput((const uint8_t *)"", 0);
	if (!nr_runs)
		fprintf(stderr, "%s: no inputs\n", argv[0]);
	return nr_runs == 0;
}
