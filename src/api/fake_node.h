/* Test support: a node that has no VMs. It speaks docs/node-protocol.md on a unix socket, keeps its
 * sandboxes in memory, and misbehaves as its control file says, one `key value` per line:
 *   delay_ms N      before a PUT is answered
 *   fail CODE       PUT answers this error; fail_each N: only each N-th one of the process
 *   die_in_put 1    the process ends when a PUT arrives (after having made the sandbox)
 *   die_in_answer 1 it ends in the middle of the answer to run, or to a PUT with one
 *   lose 1          a sandbox fails right behind its creation; the PUT's answer comes later
 *   not_ready 1     /n1/node says so
 *   started 1       the feed says `started` at every request
 *   delete_delay_ms N, delete_fail 1
 *   change_delay_ms N before a pause, suspend or wake is answered; change_fail CODE for its error
 * The file is read at every request. */
#pragma once

/* Runs until killed. Returns the exit status. */
int fake_node_main(const char *socket_path, const char *control_path);
