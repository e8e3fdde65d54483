#include "io/tls_test_rig.h"

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>
#include <openssl/bio.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>

#include "base/fd.h"

static void save_pem(const char *path, BIO *bio)
{
    char *bytes = NULL;
    long n = BIO_get_mem_data(bio, &bytes);

    assert_true(n > 0);
    assert_int_equal(file_write_atomic(AT_FDCWD, path, span_make(bytes, (size_t)n), 0600, false),
                     0);
    BIO_free(bio);
}

void tls_files_make(struct tls_files *files)
{
    EVP_PKEY *key = EVP_EC_gen("P-256");
    X509 *certificate = X509_new();
    X509_NAME *name;
    BIO *bio;

    (void)snprintf(files->directory, sizeof(files->directory), "/tmp/http-tls-XXXXXX");
    assert_non_null(mkdtemp(files->directory));
    (void)snprintf(files->certificate, sizeof(files->certificate), "%s/cert", files->directory);
    (void)snprintf(files->key, sizeof(files->key), "%s/key", files->directory);
    assert_non_null(key);
    assert_non_null(certificate);
    assert_int_equal(ASN1_INTEGER_set(X509_get_serialNumber(certificate), 1), 1);
    assert_non_null(X509_gmtime_adj(X509_getm_notBefore(certificate), -60));
    assert_non_null(X509_gmtime_adj(X509_getm_notAfter(certificate), 3600));
    name = X509_get_subject_name(certificate);
    assert_int_equal(X509_NAME_add_entry_by_txt(name, "CN", MBSTRING_ASC,
                                                (const unsigned char *)"localhost", -1, -1, 0),
                     1);
    assert_int_equal(X509_set_issuer_name(certificate, name), 1);
    assert_int_equal(X509_set_pubkey(certificate, key), 1);
    assert_true(X509_sign(certificate, key, EVP_sha256()) > 0);
    bio = BIO_new(BIO_s_mem());
    assert_int_equal(PEM_write_bio_X509(bio, certificate), 1);
    save_pem(files->certificate, bio);
    bio = BIO_new(BIO_s_mem());
    assert_int_equal(PEM_write_bio_PrivateKey(bio, key, NULL, NULL, 0, NULL, NULL), 1);
    save_pem(files->key, bio);
    X509_free(certificate);
    EVP_PKEY_free(key);
}

void tls_files_remove(const struct tls_files *files)
{
    assert_int_equal(dir_remove_tree(AT_FDCWD, files->directory), 0);
}

struct ssl_st *tls_connect(struct ssl_ctx_st *context, int fd)
{
    SSL *ssl = SSL_new(context);

    assert_non_null(ssl);
    assert_int_equal(SSL_set_fd(ssl, fd), 1);
    assert_int_equal(SSL_connect(ssl), 1);
    return ssl;
}

/* Reads until the end; the answer's bytes go to out. */
void tls_read_to_end(struct ssl_st *ssl, struct buf *out)
{
    int n;

    do {
        uint8_t *to = buf_reserve(out, 65536);

        n = SSL_read(ssl, to, 65536);
        if (n > 0) {
            buf_commit(out, (size_t)n);
        }
    } while (n > 0);
    assert_int_equal(SSL_get_error(ssl, n), SSL_ERROR_ZERO_RETURN);
}
