#include "guest/kept.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "base/buf.h"
#include "wire/agent_process.h"

#define STREAM_BYTES 2000000U

struct model {
    struct kept kept;
    struct kept_pool pool;
    uint64_t produced;
    uint64_t received; /* by the host, in order */
    uint32_t seed;
};

static uint32_t random_below(struct model *m, uint32_t limit)
{
    m->seed = m->seed * 1664525U + 1013904223U;
    return (uint32_t)(((uint64_t)m->seed * limit) >> 32U);
}

/* The byte at an offset of the stream: any mistake in order or place is seen. */
static uint8_t byte_at(uint64_t offset)
{
    return (uint8_t)(offset ^ (offset >> 8U) ^ (offset >> 16U));
}

static void produce(struct model *m, size_t wish, bool flows)
{
    size_t room;
    uint8_t *to = kept_reserve(&m->kept, &m->pool, &room);
    size_t n = wish < room ? wish : room;

    if (to == NULL) {
        assert_int_equal(room, 0);
        return;
    }
    for (size_t i = 0; i < n; i++) {
        to[i] = byte_at(m->produced + i);
    }
    if (n > 0) {
        kept_commit(&m->kept, &m->pool, n, flows);
        m->produced += n;
    }
}

static void transmit(struct model *m)
{
    struct agent_output output;
    struct agent_frame f;
    struct span frame;

    if (!kept_has_unsent(&m->kept)) {
        return;
    }
    frame = kept_frame(&m->kept, 9, AGENT_STDOUT);
    assert_int_equal(agent_frame_parse(frame, &f), frame.n);
    assert_true(frame.n <= AGENT_OUTPUT_FRAME_MAX);
    assert_int_equal(agent_output_parse(&f, &output), 0);
    assert_int_equal(output.offset, m->received);
    for (size_t i = 0; i < output.bytes.n; i++) {
        assert_int_equal(output.bytes.p[i], byte_at(output.offset + i));
    }
    m->received += output.bytes.n;
    kept_advance(&m->kept);
}

/* A new conversation from an offset that the host may have. */
static void resume(struct model *m)
{
    uint64_t span = m->received - m->kept.start;

    m->received = m->kept.start + random_below(m, (uint32_t)span + 1);
    kept_rewind(&m->kept);
    kept_resume(&m->kept, &m->pool, m->received);
    assert_int_equal(m->kept.start, m->received);
}

static void test_any_order_of_events_keeps_every_byte(void **state)
{
    struct model m = {.seed = 7};

    (void)state;
    kept_pool_init(&m.pool, 1U << 20U);
    kept_init(&m.kept);
    while (m.received < STREAM_BYTES) {
        uint32_t dice = random_below(&m, 100);

        if (dice < 45) {
            produce(&m, 1 + random_below(&m, dice < 20 ? 200 : 40000), dice % 2 == 0);
        } else if (dice < 80) {
            transmit(&m);
        } else if (dice < 97) {
            uint32_t sent = (uint32_t)(m.kept.next - m.kept.start);

            assert_int_equal(
                kept_acknowledge(&m.kept, &m.pool, m.kept.start + random_below(&m, sent + 1)), 0);
        } else {
            resume(&m);
        }
        assert_true(m.kept.end - m.kept.start <= AGENT_WINDOW);
        assert_int_equal(m.kept.end, m.produced);
    }
    assert_int_equal(kept_acknowledge(&m.kept, &m.pool, m.kept.next + 1), -EBADMSG);
    kept_clear(&m.kept, &m.pool);
    kept_pool_done(&m.pool);
}

static void test_window_closes_and_opens(void **state)
{
    struct model m = {.seed = 1};
    size_t room;

    (void)state;
    kept_pool_init(&m.pool, 1U << 20U);
    kept_init(&m.kept);
    while (m.produced < AGENT_WINDOW) {
        produce(&m, 100000, true);
    }
    assert_null(kept_reserve(&m.kept, &m.pool, &room));
    transmit(&m);
    assert_int_equal(kept_acknowledge(&m.kept, &m.pool, 1), 0);
    assert_non_null(kept_reserve(&m.kept, &m.pool, &room));
    assert_int_equal(room, 1);
    kept_clear(&m.kept, &m.pool);
    kept_pool_done(&m.pool);
}

static void test_over_its_budget_the_pool_gives_little(void **state)
{
    struct model m = {.seed = 1};
    size_t room;

    (void)state;
    kept_pool_init(&m.pool, 1);
    kept_init(&m.kept);
    assert_non_null(kept_reserve(&m.kept, &m.pool, &room));
    assert_true(room <= 4096);
    produce(&m, 100000, false);
    assert_null(kept_reserve(&m.kept, &m.pool, &room));
    kept_clear(&m.kept, &m.pool);
    kept_pool_done(&m.pool);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_any_order_of_events_keeps_every_byte),
        cmocka_unit_test(test_window_closes_and_opens),
        cmocka_unit_test(test_over_its_budget_the_pool_gives_little),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
