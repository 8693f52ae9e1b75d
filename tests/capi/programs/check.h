/* For the test programs: a claim that ends the program when it does not hold. */
#ifndef CHECK_H
#define CHECK_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <vllm.h>

#define CHECK(claim) \
    do { \
        if (!(claim)) { \
            fprintf(stderr, "%s:%d: not so: %s (last error: %s)\n", __FILE__, __LINE__, #claim, vllm_last_error()); \
            exit(1); \
        } \
    } while (0)

/* A claim about a refusal: its status, and a part of its text. */
#define CHECK_REFUSED(call, expected, part) \
    do { \
        vllm_status refused_ = (call); \
        CHECK(refused_ == (expected)); \
        CHECK(strstr(vllm_last_error(), part)); \
    } while (0)

#endif
