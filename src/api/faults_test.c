/* The store and the packers with each allocation and each system call of ours failing once: a
 * failure is told with a code, a record is there whole or not at all, nothing is leaked. */
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "api/codec.h"
#include "api/store.h"
#include "api/store_sandbox.h"
#include "base/fault_rig.h"
#include "base/fd.h"

struct place {
    char dir[64];
    char path[96];
};

static int set_up(void **state)
{
    struct place *p = calloc(1, sizeof(*p));

    assert_non_null(p);
    (void)snprintf(p->dir, sizeof(p->dir), "/tmp/api-faults-XXXXXX");
    assert_non_null(mkdtemp(p->dir));
    (void)snprintf(p->path, sizeof(p->path), "%s/space.db", p->dir);
    *state = p;
    return 0;
}

static int tear_down(void **state)
{
    struct place *p = *state;

    assert_int_equal(dir_remove_tree(AT_FDCWD, p->dir), 0);
    free(p);
    return 0;
}

static void fill(struct sandbox *s)
{
    static char metadata[] = "{\"team\":\"a\"}";
    static char names[] = "[\"LANG\"]";

    *s = (struct sandbox){.vcpus = 1, .memory_mib = 512, .disk_mib = 4096, .created_at = 1000};
    assert_int_equal(id_make("sb", s->id), 0);
    (void)snprintf(s->template_name, sizeof(s->template_name), "base");
    (void)snprintf(s->node, sizeof(s->node), "local");
    s->metadata = metadata; /* borrowed: not given to sandbox_done */
    s->env_names = names;
}

static void use_store(void *arg)
{
    const struct place *p = arg;
    _cleanup_sandbox_ struct sandbox got = {0};
    struct error err = {0};
    struct store *store = NULL;
    struct sandbox s;
    bool inserted = false;
    int found = 0;

    fill(&s);
    if (store_open(p->path, &store, &err) == 0) {
        inserted = store_sandbox_insert(store, &s, "{}", &err) == 0;
        found = store_sandbox_get(store, s.id, &got, &err);
    }
    assert_true(found >= 0 || err.message[0] != '\0');
    sandbox_done(&got);
    store_close(store);
    (void)fault_disarm();
    assert_int_equal(store_open(p->path, &store, &err), 0);
    assert_int_equal(store_sandbox_get(store, s.id, &got, &err), inserted ? 1 : 0);
    if (inserted) {
        assert_string_equal(got.metadata, s.metadata);
    }
    store_close(store);
}

static void test_store(void **state)
{
    assert_true(fault_each(use_store, *state) > 3);
}

static void use_codecs(void *arg)
{
    static const enum codec_format formats[] = {CODEC_GZIP, CODEC_ZSTD};
    uint8_t out[256];

    (void)arg;
    for (size_t i = 0; i < 4; i++) {
        struct codec *codec = codec_new(formats[i / 2], i % 2 == 0);
        struct span in = span_of_str("some text");
        size_t n = 0;

        if (codec != NULL && i % 2 == 0) {
            int r = codec_run(codec, &in, true, out, sizeof(out), &n);

            assert_true(r < 0 || (r == CODEC_DONE && n > 0));
        }
        codec_free(codec);
    }
}

static void test_codecs(void **state)
{
    assert_true(fault_each(use_codecs, *state) > 3);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_store, set_up, tear_down),
        cmocka_unit_test(test_codecs),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
