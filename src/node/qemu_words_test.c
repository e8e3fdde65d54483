#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

#include "node/qemu_args.h"

static void check(const char *log, const char *want)
{
    char out[160];

    memset(out, 'x', sizeof(out));
    qemu_last_words(log, out, sizeof(out));
    assert_string_equal(out, want);
}

static void test_the_last_line_that_is_no_warning(void **state)
{
    (void)state;
    check("", "");
    check("\n\n", "");
    check("qemu: warning: TCG doesn't support requested feature: CPUID.01H:ECX.pcid [bit 17]\n",
          "");
    check("first\nlast", "last");
    check("first\nlast\nqemu: warning: none of interest\n\n", "last");
}

static void test_a_processor_that_lacks_a_feature(void **state)
{
    (void)state;
    check("qemu: warning: host doesn't support requested feature: CPUID.07H:EBX.bmi2 [bit 8]\n"
          "qemu: warning: host doesn't support requested feature: CPUID.07H:EBX.avx2 [bit 5]\n"
          "qemu: Host doesn't support requested features\n",
          "the processor lacks CPUID.07H:EBX.avx2 [bit 5]");
    check("qemu: warning: host doesn't support requested feature: \nlast\n", "last");
}

static void test_what_is_too_long_is_cut(void **state)
{
    char log[16000];
    char out[160];

    (void)state;
    memset(log, 'a', sizeof(log));
    log[sizeof(log) - 1] = '\0';
    qemu_last_words(log, out, sizeof(out));
    assert_int_equal(strlen(out), sizeof(out) - 1);
    (void)memcpy(log, "host doesn't support requested feature: ", 40);
    qemu_last_words(log, out, sizeof(out));
    assert_int_equal(strlen(out), strlen("the processor lacks ") + 79);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_last_line_that_is_no_warning),
        cmocka_unit_test(test_a_processor_that_lacks_a_feature),
        cmocka_unit_test(test_what_is_too_long_is_cut),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
