/* Spools against a model: every byte of both streams, in order, over drops and restarts. */
#include "node/spool.h"

#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <cmocka.h>

#include "base/buf.h"
#include "base/fd.h"
#include "node/spool_private.h"

#define SESSION "se0123456789abcdefgh"

struct bench {
    char dir[64];
    int dir_fd;
    struct spool_store store;
    struct spool_group group;
    struct spool_limits limits;
    struct spool *spool;
    struct buf path; /* the model: one byte per byte of output, its stream */
    uint32_t seed;
};

static uint32_t next_random(struct bench *b, uint32_t below)
{
    b->seed = b->seed * 1664525U + 1013904223U;
    return (b->seed >> 8U) % below;
}

static uint8_t byte_at(unsigned int stream, uint64_t offset)
{
    return (uint8_t)(offset * 7 + (offset >> 8U) * 13 + stream * 101);
}

static struct bench *bench_new(uint64_t max_bytes, uint64_t head_keep)
{
    struct bench *b = calloc(1, sizeof(*b));

    assert_non_null(b);
    (void)snprintf(b->dir, sizeof(b->dir), "/tmp/spool-test-XXXXXX");
    assert_non_null(mkdtemp(b->dir));
    b->dir_fd = open(b->dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    assert_true(b->dir_fd >= 0);
    spool_store_init(&b->store);
    b->limits = (struct spool_limits){max_bytes, head_keep, &b->group};
    b->path = buf_make(0);
    b->seed = 1;
    b->spool = spool_new(&b->store, b->dir_fd, SESSION, &b->limits);
    assert_non_null(b->spool);
    return b;
}

static void bench_free(struct bench *b)
{
    spool_free(b->spool);
    assert_int_equal(b->group.bytes, 0);
    assert_int_equal(b->store.open_count, 0);
    assert_int_equal(b->store.memory_bytes, 0);
    (void)close(b->dir_fd);
    assert_int_equal(dir_remove_tree(AT_FDCWD, b->dir), 0);
    buf_done(&b->path);
    free(b);
}

static void append(struct bench *b, unsigned int stream, size_t n)
{
    uint64_t offset = spool_end(b->spool)->at[stream];
    _cleanup_buf_ struct buf bytes = buf_make(0);

    for (size_t i = 0; i < n; i++) {
        buf_put_u8(&bytes, byte_at(stream, offset + i));
        buf_put_u8(&b->path, (uint8_t)stream);
    }
    spool_append(b->spool, stream, buf_span(&bytes));
    assert_int_equal(spool_end(b->spool)->at[stream], offset + n);
}

/* kill -9: what is in memory is gone, the files are read again. */
static void restart(struct bench *b)
{
    spool_free(b->spool);
    b->spool = NULL;
    assert_int_equal(spool_recover(&b->store, b->dir_fd, SESSION, &b->limits, &b->spool), 0);
}

static struct order_position position_after(const struct bench *b, uint64_t total)
{
    struct order_position at = {{0, 0}};

    for (uint64_t i = 0; i < total; i++) {
        at.at[b->path.p[i]]++;
    }
    return at;
}

/* Reads everything from a total length of the path on and compares with the model. */
static void check_from(struct bench *b, uint64_t total)
{
    struct order_position at = position_after(b, total);
    struct spool_run run;

    for (;;) {
        _cleanup_buf_ struct buf bytes = buf_make(0);
        uint64_t n;

        assert_int_equal(spool_find_run(b->spool, &at, &run), 0);
        if (run.bytes == 0) {
            break;
        }
        n = run.bytes < 5000 ? run.bytes : 5000;
        assert_int_equal(spool_read(b->spool, run.stream, at.at[run.stream], (size_t)n, &bytes), 0);
        for (size_t i = 0; i < n; i++) {
            assert_int_equal(b->path.p[order_total(&at)], run.stream);
            assert_int_equal(bytes.p[i], byte_at(run.stream, at.at[run.stream]));
            at.at[run.stream]++;
        }
    }
    assert_int_equal(order_total(&at), b->path.n);
    assert_int_equal(order_total(spool_end(b->spool)), b->path.n);
    assert_int_equal(b->group.bytes, spool_usage(b->spool));
}

static void check(struct bench *b)
{
    uint64_t start = order_total(spool_start(b->spool));
    struct order_position model = position_after(b, start);
    struct order_position tail;
    uint64_t from;

    assert_int_equal(model.at[0], spool_start(b->spool)->at[0]);
    assert_int_equal(model.at[1], spool_start(b->spool)->at[1]);
    check_from(b, start);
    from = start + next_random(b, (uint32_t)(b->path.n - start + 1));
    check_from(b, from);
    assert_int_equal(spool_find_tail(b->spool, b->path.n - from, &tail), 0);
    assert_int_equal(order_total(&tail), from);
}

static void test_memory_then_files(void **state)
{
    struct bench *b = bench_new(1U << 30, 0);
    struct stat st;

    (void)state;
    append(b, 0, 100);
    append(b, 1, 50);
    append(b, 0, 1);
    assert_int_equal(spool_kept(b->spool, 0), 0);
    assert_int_equal(fstatat(b->dir_fd, "sessions", &st, 0), -1);
    check(b);
    assert_int_equal(spool_flush(b->spool), 0);
    assert_int_equal(spool_kept(b->spool, 0), 101);
    assert_int_equal(b->store.memory_bytes, 0);
    check(b);
    restart(b);
    check(b);
    append(b, 1, 70);
    append(b, 0, 40000);
    check(b);
    restart(b);
    check(b);
    bench_free(b);
}

/* A restart knows less than the guest was told: what is missing is a gap, also after the next. */
static void test_skip(void **state)
{
    struct bench *b = bench_new(1U << 30, 1000);

    (void)state;
    append(b, 0, 30000);
    append(b, 1, 100);
    restart(b);
    for (size_t i = 0; i < 5000; i++) {
        buf_put_u8(&b->path, 1);
    }
    spool_skip(b->spool, 1, 5000);
    assert_int_equal(spool_end(b->spool)->at[1], 5100);
    assert_int_equal(order_total(spool_start(b->spool)), 35100);
    check(b);
    restart(b);
    assert_int_equal(spool_end(b->spool)->at[1], 5100);
    append(b, 1, 10);
    append(b, 0, 20);
    check(b);
    restart(b);
    check(b);
    bench_free(b);
}

static void test_one_stream_needs_no_log(void **state)
{
    struct bench *b = bench_new(1U << 30, 0);
    struct stat st;

    (void)state;
    append(b, 1, 60000);
    restart(b);
    append(b, 1, 1000);
    check(b);
    assert_int_equal(fstatat(b->dir_fd, "sessions/" SESSION ".order", &st, 0), -1);
    restart(b);
    check(b);
    append(b, 0, 10);
    check(b);
    restart(b);
    check(b);
    bench_free(b);
}

static void run_random(uint64_t max_bytes, uint32_t seed)
{
    struct bench *b = bench_new(max_bytes, 3000);

    b->seed = seed;
    for (int i = 0; i < 300; i++) {
        static const uint32_t sizes[] = {1, 2, 7, 100, 900, 5000, 20000};
        uint32_t what = next_random(b, 20);

        if (what == 0) {
            assert_int_equal(spool_flush(b->spool), 0);
            restart(b);
        } else if (what == 1) {
            check(b);
        } else {
            append(b, next_random(b, 2), 1 + next_random(b, sizes[next_random(b, 7)]));
        }
        assert_true(spool_retained(b->spool) <= max_bytes || i == 0);
    }
    check(b);
    for (unsigned int s = 0; s < ORDER_STREAMS; s++) {
        _cleanup_buf_ struct buf head = buf_make(0);
        uint64_t n = spool_head(b->spool, s);

        assert_true(n >= 3000 || n == spool_end(b->spool)->at[s]);
        n = n < 3000 ? n : 3000;
        assert_int_equal(spool_read(b->spool, s, 0, (size_t)n, &head), 0);
        for (size_t i = 0; i < n; i++) {
            assert_int_equal(head.p[i], byte_at(s, i));
        }
    }
    bench_free(b);
}

static void test_random(void **state)
{
    (void)state;
    for (uint32_t seed = 1; seed <= 12; seed++) {
        run_random(1U << 30, seed);
        run_random(100000, seed);
        run_random(65536, seed + 100);
    }
}

static void test_dropped_output_frees_the_disk(void **state)
{
    struct bench *b = bench_new(1U << 20, 0);
    struct stat st;

    (void)state;
    for (int i = 0; i < 100; i++) {
        append(b, 0, 100000);
    }
    assert_int_equal(fstatat(b->dir_fd, "sessions/" SESSION ".out", &st, 0), 0);
    assert_int_equal(st.st_size, 10000000);
    assert_true(st.st_blocks * 512 < 3 * 1024 * 1024);
    bench_free(b);
}

static void test_alternating_bytes_are_bounded(void **state)
{
    struct bench *b = bench_new(1U << 16, 0);

    (void)state;
    for (int i = 0; i < 20000; i++) {
        append(b, (unsigned int)i % 2, 1);
    }
    assert_true(b->spool->mark_count - b->spool->mark_first <= SPOOL_MARKS_MIN);
    check(b);
    restart(b);
    check(b);
    bench_free(b);
}

/* A restart after a crash between a mark and its first byte, or in the middle of a record. */
static void test_torn_log(void **state)
{
    struct bench *b = bench_new(1U << 30, 0);
    uint8_t bytes[ORDER_RECORD_BYTES];
    struct order_mark mark;
    struct stat st;
    int fd;

    (void)state;
    append(b, 0, 20000);
    append(b, 1, 20000);
    mark = (struct order_mark){*spool_end(b->spool), 0};
    order_mark_format(&mark, bytes);
    fd = openat(b->dir_fd, "sessions/" SESSION ".order", O_WRONLY | O_APPEND | O_CLOEXEC);
    assert_true(fd >= 0);
    assert_int_equal(fd_write_all(fd, span_make(bytes, sizeof(bytes))), 0);
    assert_int_equal(fd_write_all(fd, span_make(bytes, 5)), 0);
    restart(b);
    check(b);
    append(b, 1, 10); /* not the stream that the empty run promised */
    append(b, 0, 10);
    check(b);
    restart(b);
    check(b);
    /* Without any log the streams are put one behind the other; no byte is lost. */
    assert_int_equal(ftruncate(fd, 0), 0);
    restart(b);
    assert_int_equal(order_total(spool_end(b->spool)), b->path.n);
    assert_int_equal(fstat(fd, &st), 0);
    (void)close(fd);
    bench_free(b);
}

static void set_file_limit(rlim_t bytes)
{
    struct rlimit limit;

    assert_int_equal(getrlimit(RLIMIT_FSIZE, &limit), 0);
    limit.rlim_cur = bytes;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
}

static void test_full_disk_becomes_a_gap(void **state)
{
    struct bench *b = bench_new(1U << 30, 0);
    uint64_t start;

    (void)state;
    (void)signal(SIGXFSZ, SIG_IGN);
    append(b, 0, 50000);
    set_file_limit(60000);
    append(b, 0, 30000);
    append(b, 1, 30);
    set_file_limit(RLIM_INFINITY);
    start = order_total(spool_start(b->spool));
    assert_true(start >= 50000);
    append(b, 0, 30000);
    append(b, 1, 30);
    check(b);
    assert_true(spool_head(b->spool, 0) <= 50000);
    restart(b);
    assert_int_equal(order_total(spool_start(b->spool)), start);
    check(b);
    bench_free(b);
}

static void append_held(struct bench *b, unsigned int stream, uint64_t offset, size_t n)
{
    _cleanup_buf_ struct buf bytes = buf_make(0);

    for (size_t i = 0; i < n; i++) {
        buf_put_u8(&bytes, byte_at(stream, offset + i));
        buf_put_u8(&b->path, (uint8_t)stream);
    }
    spool_append(b->spool, stream, buf_span(&bytes));
}

/* Where nothing may be dropped: what is there stays, the rest waits in its order. */
static void hold_on_full_disk(size_t before, uint64_t limit)
{
    struct bench *b = bench_new(1U << 30, 0);

    (void)signal(SIGXFSZ, SIG_IGN);
    spool_set_dropping(b->spool, false);
    append(b, 0, before);
    set_file_limit(limit);
    append_held(b, 0, before, 30000);
    append_held(b, 1, 0, 30);
    append_held(b, 0, before + 30000, 30);
    append_held(b, 0, before + 30030, 5);
    assert_true(spool_is_holding(b->spool));
    assert_int_equal(spool_start(b->spool)->at[0], 0);
    assert_int_equal(spool_end(b->spool)->at[0], before);
    assert_int_equal(spool_end(b->spool)->at[1], 0);
    assert_true(spool_kept(b->spool, 0) <= before);
    assert_true(spool_settle(b->spool) < 0);
    set_file_limit(before + 30010); /* for the first run of those, not the last */
    assert_true(spool_settle(b->spool) < 0);
    assert_int_equal(spool_end(b->spool)->at[0], before + 30000);
    assert_int_equal(spool_end(b->spool)->at[1], 30);
    set_file_limit(RLIM_INFINITY);
    assert_int_equal(spool_settle(b->spool), 0);
    assert_false(spool_is_holding(b->spool));
    assert_int_equal(order_total(spool_start(b->spool)), 0);
    check(b);
    append(b, 1, 30);
    restart(b);
    check(b);
    bench_free(b);
}

static void test_full_disk_holds_what_may_not_be_dropped(void **state)
{
    (void)state;
    hold_on_full_disk(50000, 60000);
    hold_on_full_disk(10000, 1000); /* all of it is in memory yet */
}

/* As after a crash of the guest: what is on the disk is all there is. */
static void test_what_is_held_can_be_let_go(void **state)
{
    struct bench *b = bench_new(1U << 30, 0);

    (void)state;
    (void)signal(SIGXFSZ, SIG_IGN);
    spool_set_dropping(b->spool, false);
    append(b, 0, 50000);
    set_file_limit(50000);
    append_held(b, 0, 50000, 100);
    b->path.n -= 100;
    set_file_limit(RLIM_INFINITY);
    spool_let_go(b->spool);
    check(b);
    restart(b);
    check(b);
    bench_free(b);
}

/* What was lost of a stream's begin is not offered as zeros after a restart. */
static void test_lost_heads_over_restarts(void **state)
{
    struct bench *b = bench_new(40000, 20000);

    (void)state;
    (void)signal(SIGXFSZ, SIG_IGN);
    append(b, 0, 10000);
    assert_int_equal(spool_flush(b->spool), 0);
    set_file_limit(12000);
    append(b, 0, 5000);
    set_file_limit(RLIM_INFINITY);
    append(b, 0, 100000);
    append(b, 1, 100);
    for (int round = 0; round < 3; round++) {
        assert_int_equal(spool_head(b->spool, 0), 10000);
        check(b);
        restart(b);
    }
    bench_free(b);
}

static void test_discarded_output_is_gone(void **state)
{
    static const size_t sizes[] = {100, 100000};

    (void)state;
    for (size_t i = 0; i < 2; i++) {
        struct bench *b = bench_new(40000, 20000);
        struct stat st;

        append(b, 0, sizes[i]);
        append(b, 1, 50);
        assert_true(spool_usage(b->spool) > 0);
        spool_discard(b->spool);
        assert_int_equal(spool_usage(b->spool), 0);
        assert_int_equal(spool_head(b->spool, 0), 0);
        check(b);
        if (sizes[i] > SPOOL_PAGE) {
            assert_int_equal(fstatat(b->dir_fd, "sessions/" SESSION ".out", &st, 0), 0);
            assert_true(st.st_blocks * 512 <= (blkcnt_t)SPOOL_PAGE);
        }
        append(b, 0, 300);
        restart(b);
        assert_int_equal(spool_usage(b->spool), 300 + ORDER_RECORD_BYTES);
        assert_int_equal(spool_head(b->spool, 0), 0);
        check(b);
        bench_free(b);
    }
}

/* Where not even the order log can be made before the drop: what was dropped is not offered after a
 * restart. */
static void test_drop_on_a_full_disk_outlives_a_restart(void **state)
{
    struct bench *b = bench_new(1U << 30, 0);
    uint64_t start;

    (void)state;
    if (mount("tmpfs", b->dir, "tmpfs", 0, "size=131072") < 0) {
        bench_free(b);
        skip(); /* needs root */
    }
    (void)close(b->dir_fd);
    b->dir_fd = open(b->dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    assert_true(b->dir_fd >= 0);
    b->spool->dir_fd = b->dir_fd;
    append(b, 0, 131072);
    append(b, 0, 30000);
    append(b, 0, 10000);
    start = order_total(spool_start(b->spool));
    assert_true(start >= 131072);
    check(b);
    restart(b);
    assert_int_equal(order_total(spool_start(b->spool)), start);
    check(b);
    spool_remove(b->spool);
    (void)close(b->dir_fd);
    assert_int_equal(umount(b->dir), 0);
    b->dir_fd = open(b->dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    bench_free(b);
}

static void test_open_files_are_bounded(void **state)
{
    struct bench *b = bench_new(1U << 30, 0);
    struct spool *many[40];

    (void)state;
    b->store.open_max = 8;
    for (size_t i = 0; i < 40; i++) {
        char id[ID_SIZE];

        (void)snprintf(id, sizeof(id), "se0123456789abcdef%02zu", i);
        many[i] = spool_new(&b->store, b->dir_fd, id, &b->limits);
        assert_non_null(many[i]);
        for (int k = 0; k < 3; k++) {
            uint8_t bytes[20000] = {(uint8_t)i};

            spool_append(many[i], (unsigned int)k % 2, span_make(bytes, sizeof(bytes)));
        }
        assert_true(b->store.open_count <= 8);
    }
    for (size_t i = 0; i < 40; i++) {
        _cleanup_buf_ struct buf bytes = buf_make(0);

        assert_int_equal(spool_read(many[i], 1, 0, 100, &bytes), 0);
        assert_int_equal(bytes.p[0], i);
        assert_true(b->store.open_count <= 8);
        spool_remove(many[i]);
        spool_free(many[i]);
    }
    bench_free(b);
}

static void test_bad_positions(void **state)
{
    struct bench *b = bench_new(1U << 30, 0);
    struct spool_run run;

    (void)state;
    append(b, 0, 10);
    append(b, 1, 10);
    append(b, 0, 10);
    assert_int_equal(spool_find_run(b->spool, &(struct order_position){{5, 5}}, &run), -EINVAL);
    assert_int_equal(spool_find_run(b->spool, &(struct order_position){{0, 10}}, &run), -EINVAL);
    assert_int_equal(spool_find_run(b->spool, &(struct order_position){{25, 5}}, &run), -EINVAL);
    assert_int_equal(spool_find_run(b->spool, &(struct order_position){{99, 0}}, &run), -EINVAL);
    assert_int_equal(spool_find_run(b->spool, &(struct order_position){{10, 4}}, &run), 0);
    assert_int_equal(run.bytes, 6);
    bench_free(b);
}

/* Streams that take turns have more order log than output: it counts, and goes with the output. */
static void test_the_order_log_counts(void **state)
{
    struct bench *b = bench_new(4000000, 0);
    struct stat st;
    struct order_position half;

    (void)state;
    for (unsigned int i = 0; i < 40000; i++) {
        append(b, i % 2, 1);
    }
    assert_int_equal(spool_usage(b->spool), 40000U + 40000U * ORDER_RECORD_BYTES);
    check(b);
    assert_int_equal(fstatat(b->dir_fd, "sessions/" SESSION ".order", &st, 0), 0);
    assert_int_equal(st.st_size, ORDER_HEAD_BYTES + 40000U * ORDER_RECORD_BYTES);
    restart(b);
    assert_int_equal(spool_usage(b->spool), 40000U + 40000U * ORDER_RECORD_BYTES);
    half = position_after(b, 20000);
    spool_drop_before(b->spool, &half);
    assert_int_equal(spool_usage(b->spool), 20000U + 20000U * ORDER_RECORD_BYTES);
    assert_int_equal(b->group.bytes, spool_usage(b->spool));
    bench_free(b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_memory_then_files),
        cmocka_unit_test(test_skip),
        cmocka_unit_test(test_one_stream_needs_no_log),
        cmocka_unit_test(test_random),
        cmocka_unit_test(test_dropped_output_frees_the_disk),
        cmocka_unit_test(test_alternating_bytes_are_bounded),
        cmocka_unit_test(test_torn_log),
        cmocka_unit_test(test_full_disk_becomes_a_gap),
        cmocka_unit_test(test_full_disk_holds_what_may_not_be_dropped),
        cmocka_unit_test(test_what_is_held_can_be_let_go),
        cmocka_unit_test(test_lost_heads_over_restarts),
        cmocka_unit_test(test_discarded_output_is_gone),
        cmocka_unit_test(test_the_order_log_counts),
        cmocka_unit_test(test_drop_on_a_full_disk_outlives_a_restart),
        cmocka_unit_test(test_open_files_are_bounded),
        cmocka_unit_test(test_bad_positions),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
