/* SPDX-License-Identifier: Apache-2.0 */
/* The trace: what goes in comes out as JSON, what has no room is counted, and off it does nothing. */
#include "vmm/trace.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char dir[64], file[128];
static json_t *all; /* what read_file() has read */

static void setup(void)
{
	snprintf(dir, sizeof(dir), "/tmp/thawbox-test-XXXXXX");
	cr_assert_not_null(mkdtemp(dir));
	snprintf(file, sizeof(file), "%s/trace", dir);
}

static void teardown(void)
{
	char command[128];

	json_decref(all);
	snprintf(command, sizeof(command), "rm -rf %s", dir);
	cr_assert_eq(system(command), 0);
}

TestSuite(trace, .init = setup, .fini = teardown);

static void open_trace(bool each_process)
{
	struct err err = { 0 };

	cr_assert_eq(trace_open(file, each_process, &err), 0, "%s", err.msg);
}

static void read_file(const char *name)
{
	json_error_t why;

	all = json_load_file(name, 0, &why);
	cr_assert_not_null(all, "%s", why.text);
}

/* The n-th event but those that name threads. */
static const json_t *event(size_t n)
{
	size_t i;
	json_t *each;

	json_array_foreach(json_object_get(all, "traceEvents"), i, each)
	{
		const char *phase = json_string_value(json_object_get(each, "ph"));

		if (strcmp(phase, "M") != 0 && n-- == 0)
			return each;
	}
	return NULL;
}

static size_t nr_events(void)
{
	size_t n = 0;

	while (event(n))
		n++;
	return n;
}

static const char *text(const json_t *object, const char *key)
{
	return json_string_value(json_object_get(object, key));
}

static json_int_t number(const json_t *object, const char *key)
{
	return json_integer_value(json_object_get(object, key));
}

Test(trace, off_does_nothing)
{
	trace_begin("a");
	trace_end("a", 1);
	trace_point("b", 1);
	trace_write(json_object());
	cr_assert(!trace_on());
	cr_assert_neq(access(file, F_OK), 0);
	open_trace(false);
	trace_write(NULL);
	read_file(file);
	cr_assert_eq(nr_events(), 0u, "events from before it was on");
}

Test(trace, nothing_is_written_before_the_end)
{
	open_trace(false);
	trace_point("b", 1);
	cr_assert_neq(access(file, F_OK), 0);
	trace_write(NULL);
	cr_assert_eq(access(file, F_OK), 0);
}

Test(trace, steps)
{
	static char fresh[1 << 20];

	open_trace(false);
	trace_begin("outer");
	trace_begin("wait: X");
	for (size_t i = 0; i < sizeof(fresh); i += 4096)
		((volatile char *)fresh)[i] = 1;
	trace_end("wait: X", 7);
	trace_end("outer", 0);
	trace_point("signal: X", 1ull << 40);
	trace_write(json_pack("{s:i}", "mine", 5));
	read_file(file);
	cr_assert_eq(nr_events(), 5u);
	cr_assert_str_eq(text(event(0), "ph"), "B");
	cr_assert_str_eq(text(event(0), "name"), "outer");
	cr_assert_str_eq(text(event(0), "cat"), "work");
	cr_assert_eq(number(event(0), "tid"), TRACE_LOOP);
	cr_assert_str_eq(text(event(1), "cat"), "wait");
	cr_assert_str_eq(text(event(2), "ph"), "E");
	cr_assert_eq(number(json_object_get(event(2), "args"), "count"), 7);
	cr_assert_geq(number(json_object_get(event(2), "args"), "minor_faults"), 1);
	cr_assert_str_eq(text(event(4), "ph"), "i");
	cr_assert_eq(number(json_object_get(event(4), "args"), "count"), 1ll << 40);
	for (size_t i = 1; i < 5; i++)
		cr_assert_geq(json_real_value(json_object_get(event(i), "ts")),
		              json_real_value(json_object_get(event(i - 1), "ts")));
	cr_assert_eq(number(json_object_get(all, "otherData"), "mine"), 5);
	cr_assert_eq(number(json_object_get(all, "otherData"), "lost"), 0);
}

Test(trace, full_is_counted_and_nothing_is_overwritten)
{

	open_trace(false);
	trace_point("first", 0);
	for (unsigned i = 0; i < TRACE_MAX + 99; i++)
		trace_point("more", i);
	trace_write(NULL);
	read_file(file);
	cr_assert_eq(nr_events(), TRACE_MAX);
	cr_assert_str_eq(text(event(0), "name"), "first");
	cr_assert_eq(number(json_object_get(event(TRACE_MAX - 1), "args"), "count"), TRACE_MAX - 2);
	cr_assert_eq(number(json_object_get(all, "otherData"), "lost"), 100);
}

static void *many(void *arg)
{
	trace_thread(TRACE_VCPU + (unsigned)(uintptr_t)arg);
	for (unsigned i = 0; i < 1000; i++)
		trace_point("p", i);
	return NULL;
}

Test(trace, threads_do_not_disturb_each_other)
{
	json_int_t next[TRACE_VCPU + 4] = { 0 };
	pthread_t thread[4];
	json_t *e;
	size_t i;

	open_trace(false);
	for (uintptr_t n = 0; n < 4; n++)
		pthread_create(&thread[n], NULL, many, (void *)n);
	for (unsigned n = 0; n < 4; n++)
		pthread_join(thread[n], NULL);
	trace_write(NULL);
	read_file(file);
	json_array_foreach(json_object_get(all, "traceEvents"), i, e)
	{
		if (strcmp(text(e, "ph"), "i") == 0)
			cr_assert_eq(number(json_object_get(e, "args"), "count"),
			             next[number(e, "tid")]++);
	}
	for (unsigned n = 0; n < 4; n++)
		cr_assert_eq(next[TRACE_VCPU + n], 1000);
}

Test(trace, only_once)
{
	open_trace(false);
	trace_write(NULL);
	cr_assert_eq(unlink(file), 0);
	trace_point("late", 0);
	trace_write(NULL);
	cr_assert_neq(access(file, F_OK), 0);
}

Test(trace, a_zygote_begins_again_and_its_file_has_a_pid)
{
	char name[160];

	open_trace(true);
	trace_point("another request", 0);
	trace_restart();
	trace_point("this one", 0);
	trace_thread(TRACE_LOOP);
	trace_point("in the child", 0);
	trace_write(NULL);
	snprintf(name, sizeof(name), "%s.%d", file, getpid());
	read_file(name);
	cr_assert_eq(nr_events(), 2u);
	cr_assert_str_eq(text(event(0), "name"), "this one");
	cr_assert_eq(number(event(0), "tid"), TRACE_ZYGOTE);
	cr_assert_eq(number(event(1), "tid"), TRACE_LOOP);
}

Test(trace, a_file_that_cannot_be_written_is_an_error_at_once)
{
	struct err err = { 0 };
	char long_name[5000];

	cr_assert_eq(trace_open("/nowhere/at/all", false, &err), -ENOENT);
	cr_assert_neq(err.remedy[0], '\0');
	cr_assert_eq(trace_open(dir, false, &err), -EISDIR);
	memset(long_name, 'a', sizeof(long_name) - 1);
	long_name[sizeof(long_name) - 1] = '\0';
	cr_assert_eq(trace_open(long_name, false, &err), -ENAMETOOLONG);
	cr_assert(!trace_on());
}
