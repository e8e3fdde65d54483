/* The command line of a QEMU that runs one sandbox.
 *
 * Pure. Every option is here for a reason that was tried; both sides of a snapshot must agree on
 * all of them but -kernel, -initrd, -append, -incoming and the RAM backend's mode. */
#include "node/qemu_args.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "node/runtime.h"
#include "node/strv.h"

const char *qemu_binary(const struct runtime *rt, const char *accelerator)
{
    return strcmp(accelerator, "kvm") == 0 && rt->own.kvm_binary[0] != '\0' ? rt->own.kvm_binary
                                                                            : rt->binary;
}

static void add_machine(const struct runtime *rt, const struct runtime_launch *l, struct strv *v)
{
    const char *accelerator = l->accelerator != NULL ? l->accelerator : rt->env.accelerator;

    strv_add(v, "-machine");
    /* acpi=on: Debian's kernel finds virtio-mmio devices only through ACPI. */
    strv_add(v,
             "microvm,acpi=on,pcie=off,usb=off,rtc=on,isa-serial=on,graphics=off,"
             "suppress-vmdesc=on,auto-kernel-cmdline=off,mem-merge=off,dump-guest-core=off%s",
             l->mode == RUNTIME_MODE_PROBE ? "" : ",memory-backend=ram");
    /* Not SeaBIOS, which acpi=on would choose: it keeps the disk's queue at the top of RAM, and
     * QEMU's boot ROM for it puts the initramfs there when RAM ends where the kernel's
     * initrd_addr_max does, at 2 GiB. This one keeps nothing in high memory, has no disk driver,
     * and loads the kernel by itself. */
    strv_add(v, "-bios");
    strv_add(v, "qboot.rom");
    strv_add(v, "-accel");
    if (strcmp(accelerator, "kvm") == 0) {
        strv_add(v, "kvm");
    } else {
        strv_add(v, "tcg,thread=multi,tb-size=%u", rt->translation_mib);
    }
    strv_add(v, "-cpu");
    /* The probe asks whether KVM runs guests, not which of them. */
    strv_add(v, "%s",
             qemu_cpu_model(accelerator, l->mode == RUNTIME_MODE_PROBE ? "host" : rt->cpu));
    strv_add(v, "-smp");
    strv_add(v, "%u", l->vcpus);
    strv_add(v, "-m");
    strv_add(v, "%uM", l->memory_mib);
    strv_add(v, "-global");
    strv_add(v, "migration.send-configuration=off");
}

static void add_ram(const struct runtime *rt, const struct runtime_launch *l, struct strv *v)
{
    if (l->mode == RUNTIME_MODE_PROBE) {
        return;
    }
    strv_add(v, "-object");
    if (l->mode == RUNTIME_MODE_BOOT) {
        strv_add(v, "memory-backend-file,id=ram,size=%uM,share=on,mem-path=%s", l->memory_mib,
                 l->ram_path);
    } else if (l->ram_is_memfd) {
        strv_add(v, "memory-backend-file,id=ram,size=%uM,share=off,mem-path=/proc/self/fd/%d",
                 l->memory_mib, RUNTIME_FD_RAM);
    } else {
        strv_add(v, "memory-backend-file,id=ram,size=%uM,share=off,readonly=on,rom=off,mem-path=%s",
                 l->memory_mib, l->ram_path);
    }
    (void)rt;
}

static void add_devices(const struct runtime_launch *l, struct strv *v)
{
    if (l->mode != RUNTIME_MODE_PROBE) {
        strv_add(v, "-add-fd");
        strv_add(v, "fd=%d,set=1", RUNTIME_FD_DISK_RW);
        strv_add(v, "-add-fd");
        strv_add(v, "fd=%d,set=1", RUNTIME_FD_DISK_RO);
        strv_add(v, "-blockdev");
        /* no-flush: durability of a sandbox's disk is the node's work, at its snapshots. */
        strv_add(v, "{\"driver\":\"file\",\"node-name\":\"disk\",\"filename\":\"/dev/fdset/1\","
                    "\"locking\":\"off\",\"discard\":\"unmap\","
                    "\"cache\":{\"direct\":false,\"no-flush\":true}}");
        strv_add(v, "-device");
        strv_add(v, "virtio-blk-device,drive=disk,werror=report,rerror=report");
        strv_add(v, "-netdev");
        strv_add(v, "tap,id=net,fd=%d,vhost=off", RUNTIME_FD_TAP);
        strv_add(v, "-device");
        strv_add(v, "virtio-net-device,netdev=net,mac=" QEMU_GUEST_MAC);
    }
    strv_add(v, "-chardev");
    strv_add(v, "socket,id=agent,fd=%d,server=on,wait=off", RUNTIME_FD_AGENT);
    strv_add(v, "-device");
    strv_add(v, "virtio-serial-device,max_ports=2");
    strv_add(v, "-device");
    strv_add(v, "virtserialport,chardev=agent,name=space.agent,nr=1");
}

static void add_boot(const struct runtime *rt, const struct runtime_launch *l, struct strv *v)
{
    const char *accelerator = l->accelerator != NULL ? l->accelerator : rt->env.accelerator;
    bool tcg = strcmp(accelerator, "tcg") == 0;
    char clock[80];

    /* An emulated CPU's TSC is the host's. A guest that has to find its frequency out by the PIT
     * fails whenever the host is busy, and then waits for ticks for ever. */
    (void)snprintf(clock, sizeof(clock), " tsc_early_khz=%llu tsc=reliable no_timer_check",
                   (unsigned long long)rt->env.tsc_khz);
    if (l->mode == RUNTIME_MODE_RESTORE) {
        strv_add(v, "-incoming");
        strv_add(v, "defer");
        strv_add(v, "-S");
        return;
    }
    strv_add(v, "-kernel");
    strv_add(v, "%s", rt->kernel_path);
    strv_add(v, "-initrd");
    strv_add(v, "%s", rt->initrd_path);
    strv_add(v, "-append");
    /* Emulators below 8 key translated code by virtual address: randomised addresses would make
     * every program be translated anew at each start. Emulated CPUs do not speculate. */
    strv_add(v, "console=ttyS0 %s random.trust_cpu=on panic=-1 reboot=t%s%s%s",
             l->mode == RUNTIME_MODE_PROBE ? "loglevel=7" : "quiet loglevel=4",
             tcg ? " mitigations=off" : "", tcg ? clock : "",
             tcg && rt->own.major < 8 ? " norandmaps" : "");
}

static void add_jail(const struct runtime *rt, const struct runtime_launch *l, struct strv *v)
{
    unsigned int uid = l->uid;

    if (rt->own.major >= 9) {
        strv_add(v, "-run-with");
        strv_add(v, "chroot=%s,user=%u:%u", l->empty_dir, uid, uid);
    } else {
        strv_add(v, "-chroot");
        strv_add(v, "%s", l->empty_dir);
        strv_add(v, "-runas");
        strv_add(v, "%u:%u", uid, uid);
    }
    strv_add(v, "-sandbox");
    strv_add(v, "on,obsolete=deny,spawn=deny,resourcecontrol=deny");
}

int qemu_build_args(const struct runtime *rt,
                    const struct runtime_launch *l,
                    struct strv *ret_argv,
                    struct error *err)
{
    struct strv *v = ret_argv;

    strv_add(v, "%s",
             qemu_binary(rt, l->accelerator != NULL ? l->accelerator : rt->env.accelerator));
    strv_add(v, "-name");
    strv_add(v, "vm-%u", l->slot);
    strv_add(v, "-nodefaults");
    strv_add(v, "-no-user-config");
    strv_add(v, "-display");
    strv_add(v, "none");
    /* A guest that ends leaves the VMM stopped, so that its console can still be read. */
    strv_add(v, "-no-reboot");
    strv_add(v, "-no-shutdown");
    add_machine(rt, l, v);
    add_ram(rt, l, v);
    strv_add(v, "-chardev");
    strv_add(v, "ringbuf,id=console,size=%u", QEMU_CONSOLE_BYTES);
    strv_add(v, "-serial");
    strv_add(v, "chardev:console");
    strv_add(v, "-chardev");
    strv_add(v, "socket,id=control,fd=%d,server=on,wait=off", RUNTIME_FD_CONTROL);
    strv_add(v, "-mon");
    strv_add(v, "chardev=control,mode=control");
    add_devices(l, v);
    add_boot(rt, l, v);
    add_jail(rt, l, v);
    if (v->error != 0) {
        return error_set(err, -v->error, "cannot build the VMM's command line");
    }
    return 0;
}
