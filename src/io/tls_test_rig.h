/* Test support: a certificate, and a blocking client that speaks TLS. Everything fails the running
 * cmocka test on its own. */
#pragma once

#include "base/buf.h"

struct ssl_st;
struct ssl_ctx_st;

struct tls_files {
    char directory[64];
    char certificate[96];
    char key[96];
};

void tls_files_make(struct tls_files *files);
void tls_files_remove(const struct tls_files *files);
/* Shakes hands over a connected socket. */
struct ssl_st *tls_connect(struct ssl_ctx_st *context, int fd);
/* Reads until the peer's goodbye; the bytes go to out. */
void tls_read_to_end(struct ssl_st *ssl, struct buf *out);
