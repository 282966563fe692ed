/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
//go:build ignore

/*
 * Charges the time of CPUs to the ends of a path: a task's to the end that its network namespace belongs to, that of
 * softirqs to the end whose device has the packet, and that of kernel threads to the end that woke them, or queued what
 * they execute. Needs kernel 5.5, for BTF of tracepoints. Cost: some 100 instructions for each switch, packet, waking
 * and work item.
 */
#include <stdbool.h>
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>

enum end { END_OTHER, END_CLIENT, END_SERVER, END_IDLE, END_COUNT };

/* What is asked of the kernel's own structures; the loader finds where it is. */
struct ns_common {
	unsigned int inum;
} __attribute__((preserve_access_index));

struct net {
	struct ns_common ns;
} __attribute__((preserve_access_index));

struct nsproxy {
	struct net *net_ns;
} __attribute__((preserve_access_index));

struct mm_struct;

struct task_struct {
	int pid;
	struct mm_struct *mm; /* none of kernel threads */
	struct nsproxy *nsproxy;
} __attribute__((preserve_access_index));

typedef struct {
	struct net *net;
} __attribute__((preserve_access_index)) possible_net_t;

struct net_device {
	possible_net_t nd_net;
} __attribute__((preserve_access_index));

struct sk_buff {
	struct net_device *dev;
} __attribute__((preserve_access_index));

struct work_struct;
struct pool_workqueue;

/* Ends by the inode number of network namespaces. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 16);
	__type(key, __u32);
	__type(value, __u32);
} namespaces SEC(".maps");

/* Ends by the address of the work item that is queued. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 4096);
	__type(key, __u64);
	__type(value, __u32);
} queued SEC(".maps");

/* Ends by the number of a kernel thread. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 1024);
	__type(key, __u32);
	__type(value, __u32);
} threads SEC(".maps");

struct account {
	__u64 charged[END_COUNT]; /* ns */
	__u64 since;              /* when the present end began to be charged, ns since boot; 0: not yet */
	enum end present;
};

/* One of each CPU. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct account);
} accounts SEC(".maps");

static __always_inline struct account *account_get(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&accounts, &zero);
}

static __always_inline void charge(__u32 end)
{
	struct account *a = account_get();
	__u64 now = bpf_ktime_get_ns();

	if (!a || a->present >= END_COUNT)
		return;
	if (a->since)
		a->charged[a->present] += now - a->since;
	a->since = now;
	a->present = end;
}

static __always_inline __u32 net_end(const struct net *net)
{
	__u32 inum, *end;

	if (!net)
		return END_OTHER;
	inum = net->ns.inum;
	end = bpf_map_lookup_elem(&namespaces, &inum);
	return end ? *end : END_OTHER;
}

static __always_inline __u32 task_end(const struct task_struct *task)
{
	__u32 pid = task->pid;
	__u32 *end;

	if (!pid)
		return END_IDLE;
	end = bpf_map_lookup_elem(&threads, &pid);
	if (end)
		return *end;
	return task->nsproxy ? net_end(task->nsproxy->net_ns) : END_OTHER;
}

static __always_inline int packet_charge(const struct sk_buff *skb)
{
	struct net_device *dev = skb->dev;

	if (dev)
		charge(net_end(dev->nd_net.net));
	return 0;
}

SEC("tp_btf/sched_switch")
int BPF_PROG(switched, bool preempt, struct task_struct *prev, struct task_struct *next)
{
	charge(task_end(next));
	return 0;
}

SEC("tp_btf/softirq_exit")
int BPF_PROG(softirq_ended, unsigned int vector)
{
	charge(task_end(bpf_get_current_task_btf()));
	return 0;
}

SEC("tp_btf/netif_receive_skb")
int BPF_PROG(received, struct sk_buff *skb)
{
	return packet_charge(skb);
}

SEC("tp_btf/napi_gro_receive_entry")
int BPF_PROG(aggregated, const struct sk_buff *skb)
{
	return packet_charge(skb);
}

SEC("tp_btf/net_dev_queue")
int BPF_PROG(transmitted, struct sk_buff *skb)
{
	return packet_charge(skb);
}

static __always_inline __u32 present_end(void)
{
	struct account *a = account_get();

	return a ? a->present : END_OTHER;
}

SEC("tp_btf/sched_waking")
int BPF_PROG(woken, struct task_struct *task)
{
	__u32 pid = task->pid;
	__u32 end = present_end();

	if (pid && !task->mm && end != END_IDLE)
		bpf_map_update_elem(&threads, &pid, &end, BPF_ANY);
	return 0;
}

SEC("tp_btf/workqueue_queue_work")
int BPF_PROG(work_queued, int cpu, struct pool_workqueue *queue, struct work_struct *work)
{
	__u64 key = (__u64)work;
	__u32 end = present_end();

	bpf_map_update_elem(&queued, &key, &end, BPF_ANY);
	return 0;
}

SEC("tp_btf/workqueue_execute_start")
int BPF_PROG(work_begun, struct work_struct *work)
{
	__u32 pid = bpf_get_current_pid_tgid();
	__u64 key = (__u64)work;
	__u32 *end = bpf_map_lookup_elem(&queued, &key);
	__u32 of = end ? *end : END_OTHER;

	bpf_map_update_elem(&threads, &pid, &of, BPF_ANY);
	charge(of);
	return 0;
}

char _license[] SEC("license") = "GPL";
