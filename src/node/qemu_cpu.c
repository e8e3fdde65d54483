/* Which processor a guest sees.
 *
 * Under the emulator a named model that it implements well, less what it does not (it would only
 * warn). Under KVM the host's own, or a named level that machines of several kinds have, each a set
 * of features over the same plain model. `enforce`: on a host that lacks one the VMM does not
 * start, instead of leaving it out of what snapshots will count on. */
#include <cpuid.h>
#include <stdio.h>
#include <string.h>

#include "node/qemu_args.h"
#include "node/runtime.h"

#define LEVEL_2 "qemu64,+popcnt,+ssse3,+sse4.1,+sse4.2"

#define HASH_START 2166136261U /* FNV-1a */
#define HASH_PRIME 16777619U

static const struct {
    const char *name;
    const char *model;
} levels[] = {
    {"x86-64-v2", LEVEL_2 ",enforce"},
    {"x86-64-v3", LEVEL_2 ",+aes,+pclmulqdq,+abm,+avx,+avx2,+bmi1,+bmi2,+f16c,+fma,+movbe,+xsave,"
                          "enforce"},
};

static const char *find_level(const char *cpu)
{
    for (size_t i = 0; i < sizeof(levels) / sizeof(levels[0]); i++) {
        if (strcmp(levels[i].name, cpu) == 0) {
            return levels[i].model;
        }
    }
    return NULL;
}

const char *qemu_cpu_model(const char *accelerator, const char *cpu)
{
    const char *level;

    if (strcmp(accelerator, "kvm") != 0) {
        return QEMU_TCG_CPU;
    }
    level = find_level(cpu);
    return level != NULL ? level : "host,-arch-capabilities";
}

static void get_vendor(char out[13])
{
    unsigned int most = 0;
    unsigned int words[3] = {0};

    (void)__get_cpuid(0, &most, &words[0], &words[2], &words[1]);
    memcpy(out, words, sizeof(words));
    out[12] = '\0';
}

static unsigned int hash_word(unsigned int hash, unsigned int word)
{
    for (unsigned int i = 0; i < 4; i++) {
        hash = (hash ^ (word >> (8 * i) & 0xffU)) * HASH_PRIME;
    }
    return hash;
}

/* Of the feature words that the processor itself reports: another kernel, or newer microcode that
 * only tells of its mitigations, leaves it the same. */
static unsigned int hash_features(unsigned int *ret_signature)
{
    static const struct {
        unsigned int leaf;
        bool b;
        bool c;
        bool d;
    } wanted[] = {{1, false, true, true}, {7, true, true, false}, {0x80000001U, false, true, true}};
    unsigned int hash = HASH_START;

    *ret_signature = 0;
    for (size_t i = 0; i < sizeof(wanted) / sizeof(wanted[0]); i++) {
        unsigned int a = 0;
        unsigned int b = 0;
        unsigned int c = 0;
        unsigned int d = 0;

        (void)__get_cpuid_count(wanted[i].leaf, 0, &a, &b, &c, &d);
        if (i == 0) {
            *ret_signature = a;
        }
        hash = hash_word(hash, wanted[i].b ? b : 0);
        hash = hash_word(hash, wanted[i].c ? c : 0);
        hash = hash_word(hash, wanted[i].d ? d : 0);
    }
    return hash;
}

void qemu_cpu_name(const char *accelerator, const char *cpu, char *out, size_t size)
{
    char vendor[13];
    unsigned int signature;
    unsigned int features;

    if (strcmp(accelerator, "kvm") != 0) {
        (void)snprintf(out, size, "%s", QEMU_TCG_CPU);
        return;
    }
    get_vendor(vendor);
    if (find_level(cpu) != NULL) {
        /* A guest's kernel chooses instructions by the vendor, which is always the host's. */
        (void)snprintf(out, size, "%s of %s", cpu, vendor);
        return;
    }
    features = hash_features(&signature);
    (void)snprintf(out, size, "host, %s %x %08x", vendor, signature, features);
}
