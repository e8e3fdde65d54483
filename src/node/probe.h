/* Which accelerator works here. That /dev/kvm opens proves nothing: a tiny guest is really booted
 * under KVM once, and the result kept (`accelerator.json` in the data directory) for this boot of
 * the host, this VMM and this kernel. */
#pragma once

struct node;
struct probe;

/* Sets the runtime's accelerator, and its reason until then; done comes once. NULL: it needed no
 * guest, and done has come already. The other is freed when done has come, or by probe_cancel. To
 * be called when nothing is reaped any more: the guest's VM is in no journal. */
struct probe *probe_accelerator(struct node *node, void (*done)(void *arg), void *arg);
/* Ends its guest; done does not come. NULL is nothing. */
void probe_cancel(struct probe *probe);
