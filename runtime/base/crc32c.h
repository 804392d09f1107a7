/* CRC-32C (Castagnoli; reflected polynomial 0x82f63b78, as in iSCSI, RFC 3720): the checksum of
 * run files and of TensorBoard event records. Local. */
#ifndef TR_CRC32C_H
#define TR_CRC32C_H

#include <stddef.h>
#include <stdint.h>

/* Continues `crc` (0 to start) over `nbytes` bytes: tr_crc32c(tr_crc32c(0, a), b) is that of a then
 * b. Uses the SSE4.2 instruction where the CPU has it. */
uint32_t tr_crc32c(uint32_t crc, const void *bytes, size_t nbytes);
/* The portable way, for CPUs without the instruction and for checking the other one. */
uint32_t tr_crc32c_portable(uint32_t crc, const void *bytes, size_t nbytes);

#endif
