#include "node/qemu_args.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "node/runtime.h"
#include "node/strv.h"

static struct runtime make_runtime(unsigned int major, const char *accelerator)
{
    struct runtime rt = {
        .own = {.major = major}, .translation_mib = 64, .env = {.tsc_khz = 2596130}};

    (void)snprintf(rt.binary, sizeof(rt.binary), "/usr/bin/qemu-system-x86_64");
    (void)snprintf(rt.kernel_path, sizeof(rt.kernel_path), "/g/vmlinuz");
    (void)snprintf(rt.initrd_path, sizeof(rt.initrd_path), "/g/initramfs");
    (void)snprintf(rt.env.accelerator, sizeof(rt.env.accelerator), "%s", accelerator);
    return rt;
}

static struct runtime_launch make_launch(enum runtime_mode mode)
{
    return (struct runtime_launch){
        .mode = mode,
        .slot = 3,
        .vcpus = 2,
        .memory_mib = 512,
        .uid = 700003,
        .ram_path = "/b/ram",
        .empty_dir = "/run/empty",
    };
}

static void build(const struct runtime *rt, const struct runtime_launch *l, struct strv *v)
{
    *v = (struct strv){0};
    assert_int_equal(qemu_build_args(rt, l, v, NULL), 0);
    assert_null(v->items[v->count]);
}

/* The argument after `option` that contains `part`, or NULL. */
static const char *find(const struct strv *v, const char *option, const char *part)
{
    for (size_t i = 0; i + 1 < v->count; i++) {
        if (strcmp(v->items[i], option) == 0 && strstr(v->items[i + 1], part) != NULL) {
            return v->items[i + 1];
        }
    }
    return NULL;
}

static void test_restore(void **state)
{
    struct runtime rt = make_runtime(10, "tcg");
    struct runtime_launch l = make_launch(RUNTIME_MODE_RESTORE);
    struct strv v;

    (void)state;
    build(&rt, &l, &v);
    assert_string_equal(v.items[0], "/usr/bin/qemu-system-x86_64");
    assert_non_null(find(&v, "-incoming", "defer"));
    assert_null(find(&v, "-kernel", ""));
    assert_non_null(find(&v, "-bios", "qboot.rom"));
    /* No sandbox may write to the base's RAM. */
    assert_non_null(find(&v, "-object", "share=off,readonly=on,rom=off,mem-path=/b/ram"));
    assert_non_null(find(&v, "-run-with", "chroot=/run/empty,user=700003:700003"));
    assert_non_null(find(&v, "-sandbox", "on,"));
    assert_non_null(find(&v, "-sandbox", "spawn=deny"));
    assert_null(find(&v, "-sandbox", "elevateprivileges"));
    assert_non_null(find(&v, "-smp", "2"));
    assert_non_null(find(&v, "-m", "512M"));
    assert_non_null(find(&v, "-accel", "tb-size=64"));
    strv_done(&v);
    l.ram_is_memfd = true;
    build(&rt, &l, &v);
    assert_non_null(find(&v, "-object", "share=off,mem-path=/proc/self/fd/8"));
    strv_done(&v);
}

static void test_boot(void **state)
{
    struct runtime rt = make_runtime(10, "tcg");
    struct runtime_launch l = make_launch(RUNTIME_MODE_BOOT);
    struct strv v;

    (void)state;
    build(&rt, &l, &v);
    assert_non_null(find(&v, "-object", "share=on,mem-path=/b/ram"));
    assert_non_null(find(&v, "-append", "tsc_early_khz=2596130"));
    assert_null(find(&v, "-append", "norandmaps"));
    assert_null(find(&v, "-incoming", ""));
    assert_non_null(find(&v, "-bios", "qboot.rom"));
    strv_done(&v);
    /* A snapshot must load with the options it was saved with. */
    assert_string_equal(qemu_cpu_model("tcg", "x86-64-v3"), QEMU_TCG_CPU);
    rt = make_runtime(10, "kvm");
    build(&rt, &l, &v);
    assert_null(find(&v, "-append", "tsc_early_khz"));
    assert_null(find(&v, "-append", "mitigations=off"));
    assert_non_null(find(&v, "-cpu", "host"));
    strv_done(&v);
    (void)snprintf(rt.cpu, sizeof(rt.cpu), "x86-64-v3");
    build(&rt, &l, &v);
    assert_non_null(find(&v, "-cpu", "+avx2"));
    assert_non_null(find(&v, "-cpu", "enforce"));
    strv_done(&v);
}

static void test_old_version(void **state)
{
    struct runtime rt = make_runtime(7, "tcg");
    struct runtime_launch l = make_launch(RUNTIME_MODE_BOOT);
    struct strv v;

    (void)state;
    build(&rt, &l, &v);
    assert_non_null(find(&v, "-append", "norandmaps"));
    assert_non_null(find(&v, "-chroot", "/run/empty"));
    assert_non_null(find(&v, "-runas", "700003:700003"));
    assert_null(find(&v, "-run-with", ""));
    strv_done(&v);
}

static void test_probe(void **state)
{
    struct runtime rt = make_runtime(10, "tcg");
    struct runtime_launch l = make_launch(RUNTIME_MODE_PROBE);
    struct strv v;

    (void)state;
    l.accelerator = "kvm";
    (void)snprintf(rt.cpu, sizeof(rt.cpu), "x86-64-v3");
    build(&rt, &l, &v);
    assert_non_null(find(&v, "-cpu", "host"));
    assert_non_null(find(&v, "-accel", "kvm"));
    assert_null(find(&v, "-blockdev", ""));
    assert_null(find(&v, "-netdev", ""));
    assert_null(find(&v, "-object", ""));
    strv_done(&v);
}

/* What tells snapshots of one processor from those of another. */
static void test_cpu_names(void **state)
{
    char host[96];
    char again[96];
    char two[96];
    char three[96];
    char emulated[96];

    (void)state;
    qemu_cpu_name("kvm", "host", host, sizeof(host));
    qemu_cpu_name("kvm", "host", again, sizeof(again));
    qemu_cpu_name("kvm", "x86-64-v2", two, sizeof(two));
    qemu_cpu_name("kvm", "x86-64-v3", three, sizeof(three));
    qemu_cpu_name("tcg", "host", emulated, sizeof(emulated));
    assert_string_equal(host, again);
    assert_int_equal(strncmp(host, "host, ", 6), 0);
    assert_true(strlen(host) > strlen("host, 0 00000000") + 10); /* with the vendor */
    assert_int_equal(strncmp(two, "x86-64-v2 of ", 13), 0);
    assert_string_equal(strchr(two, ' '), strchr(three, ' '));
    assert_string_not_equal(two, three);
    assert_string_equal(emulated, QEMU_TCG_CPU);
}

static void test_strv_limits(void **state)
{
    struct strv v = {0};

    (void)state;
    for (unsigned int i = 0; i < STRV_MAX; i++) {
        strv_add(&v, "%u", i);
    }
    assert_int_equal(v.error, 0);
    strv_add(&v, "x");
    assert_true(v.error < 0);
    assert_int_equal(v.count, STRV_MAX);
    strv_done(&v);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_restore),     cmocka_unit_test(test_boot),
        cmocka_unit_test(test_old_version), cmocka_unit_test(test_probe),
        cmocka_unit_test(test_strv_limits), cmocka_unit_test(test_cpu_names),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
