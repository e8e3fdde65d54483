/* Which accelerator works here. That /dev/kvm opens proves nothing: a tiny guest is really booted
 * under KVM once, and the result kept (`accelerator.json` in the data directory) for this boot of
 * the host, this VMM and this kernel. */
#pragma once

struct node;

/* Sets the runtime's accelerator; done comes once, later. */
void probe_accelerator(struct node *node, void (*done)(void *arg), void *arg);
