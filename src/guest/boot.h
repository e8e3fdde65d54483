/* From the initramfs to a guest that programs can run in (PID 1 only). */
#pragma once

/* Mounts, loads the modules, finds the disk, makes it the root, and sets the system up. The program
 * goes on from the initramfs' memory: no file of the guest is behind it. Dies on the console when
 * the guest cannot work. */
void boot_guest(void);

/* Loads /modules/NAME for each line of /modules/order (modules.c). 0 or -errno; says what failed.
 */
int modules_load(void);

/* Loopback, and eth0 when it exists, with the fixed addresses (network.c). */
void network_configure(void);
