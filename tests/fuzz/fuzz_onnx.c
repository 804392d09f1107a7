/* links: trireme_onnx
 * libFuzzer: an ONNX file, read as a user's would be: any bytes end in a network or in an error with a
 * text, and nothing is left. */
#include "fuzz_data.h"
#include "optimize/onnx/onnx.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n)
{
    const size_t held = tr_mem_held(TR_MEM_OTHER) + tr_mem_held(TR_MEM_WEIGHTS);
    const tr_onnx_import o = {.loss = NULL};
    tr_onnx_found found = {0};
    tr_network *net = NULL;
    char path[32];
    int fd = fuzz_file(bytes, n, path);
    tr_log_init(0, 1, TR_LOG_ERROR);
    if (tr_onnx_read(path, &o, &net, &found) != TR_OK && !*tr_last_error()->text) abort();
    tr_network_close(net);
    tr_onnx_found_free(&found);
    close(fd);
    if (tr_mem_held(TR_MEM_OTHER) + tr_mem_held(TR_MEM_WEIGHTS) != held) abort();
    return 0;
}
