/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * A plugin of QEMU that counts how often the guest executes each block of its kernel's code, BPF programs included.
 * Whenever the guest executes MARK, it writes the counts so far to a file of the folder out=: 0, 1, 2, ... A line has
 * the block's address (hex), its instructions, and how often it was executed.
 *
 * QEMU's packages have no header for plugins, so that the few declarations of qemu-plugin.h (API version 1, QEMU 4.2)
 * that are needed are here.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef uint64_t qemu_plugin_id_t;
struct qemu_plugin_tb;
typedef void (*translated)(qemu_plugin_id_t id, struct qemu_plugin_tb *tb);
typedef void (*executed)(unsigned int cpu, void *data);

size_t qemu_plugin_tb_n_insns(const struct qemu_plugin_tb *tb);
uint64_t qemu_plugin_tb_vaddr(const struct qemu_plugin_tb *tb);
void qemu_plugin_register_vcpu_tb_trans_cb(qemu_plugin_id_t id, translated cb);
void qemu_plugin_register_vcpu_tb_exec_cb(struct qemu_plugin_tb *tb, executed cb, int flags, void *data);
void qemu_plugin_register_vcpu_tb_exec_inline(struct qemu_plugin_tb *tb, int op, void *counter, uint64_t add);

#define QEMU_PLUGIN_CB_NO_REGS 0
#define QEMU_PLUGIN_INLINE_ADD_U64 0

#define EXPORT __attribute__((visibility("default")))
#define KERNEL (1ull << 63)   /* addresses from here on are the kernel's */
#define BLOCKS (1u << 22)     /* a guest that runs a benchmark has some 500,000 */

EXPORT int qemu_plugin_version = 1;

/* Open addressing. QEMU translates a block again after it has dropped it: its counter goes on. */
static struct block {
	uint64_t address;
	uint64_t count;
	uint32_t instructions; /* 0: free */
} *blocks;

static const char *out = ".";
static unsigned int dumps;

static struct block *block_of(uint64_t address, uint32_t instructions)
{
	uint64_t hash = address * 0x9e3779b97f4a7c15ull + instructions * 0xff51afd7ed558ccdull;
	uint32_t i = hash >> 42;

	while (blocks[i].instructions && (blocks[i].address != address || blocks[i].instructions != instructions))
		i = (i + 1) % BLOCKS;
	blocks[i].address = address;
	blocks[i].instructions = instructions;
	return &blocks[i];
}

static void dump(unsigned int cpu, void *data)
{
	char name[4096];
	FILE *f;

	(void)cpu, (void)data;
	snprintf(name, sizeof(name), "%s/%u", out, dumps++);
	f = fopen(name, "w");
	if (!f) {
		perror(name);
		exit(1);
	}
	for (uint32_t i = 0; i < BLOCKS; i++)
		if (blocks[i].count)
			fprintf(f, "%llx %u %llu\n", (unsigned long long)blocks[i].address, blocks[i].instructions,
				(unsigned long long)blocks[i].count);
	fclose(f);
}

static void translate(qemu_plugin_id_t id, struct qemu_plugin_tb *tb)
{
	uint64_t address = qemu_plugin_tb_vaddr(tb);

	(void)id;
	if (address == MARK)
		qemu_plugin_register_vcpu_tb_exec_cb(tb, dump, QEMU_PLUGIN_CB_NO_REGS, NULL);
	else if (address & KERNEL)
		qemu_plugin_register_vcpu_tb_exec_inline(tb, QEMU_PLUGIN_INLINE_ADD_U64,
			&block_of(address, qemu_plugin_tb_n_insns(tb))->count, 1);
}

EXPORT int qemu_plugin_install(qemu_plugin_id_t id, const void *info, int argc, char **argv)
{
	(void)info;
	for (int i = 0; i < argc; i++)
		if (!strncmp(argv[i], "out=", 4))
			out = strdup(argv[i] + 4);
	blocks = calloc(BLOCKS, sizeof(*blocks));
	if (!blocks)
		return -1;
	qemu_plugin_register_vcpu_tb_trans_cb(id, translate);
	return 0;
}
