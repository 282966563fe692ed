package bench

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"time"

	"github.com/cilium/ebpf/asm"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"myelin/bench/results"
)

// Encrypted is a cipher on wires of one MTU: paths that are compared with each other.
type Encrypted struct {
	Cipher Cipher
	MTU    int // of the wire, bytes
}

// Encryptions are all that are measured.
func Encryptions() []Encrypted {
	return []Encrypted{{WireGuard, 1500}, {WireGuard, 9000}, {IPsec, 1500}, {IPsec, 9000}}
}

// EncryptionTests are those of Tests that ciphers are compared by, with shorter streams: a byte takes ten times as many
// instructions.
func EncryptionTests() (tests []Test) {
	const bytes = 10_000_000
	for _, t := range Tests() {
		switch t.Name {
		case "stream":
			t.count = bytes
			tests = append(tests, t)
		case "rr", "crr":
			tests = append(tests, t)
		}
	}
	return tests
}

// String is the end of the names of its paths: "1500-wireguard".
func (e Encrypted) String() string { return fmt.Sprintf("%d-%s", e.MTU, e.Cipher) }

// Scenarios are node→node through a device of the kernel that encrypts, the baseline; pod→pod by redirects into such a
// device, the bound on veth; and pod→pod with agents that encrypt.
func (e Encrypted) Scenarios(binaries string) []Scenario {
	named := func(what string) kernelPath { return kernelPath{name: what + e.String(), mtu: e.MTU} }
	bound := &cryptRedirect{redirectPath{kernelPath: named("redirect-")}, e.Cipher}
	bound.pods = true
	return []Scenario{
		&cryptNode{named("node-"), e.Cipher},
		bound,
		&encryptedAgents{cipher: e.Cipher,
			agentPath: agentPath{name: "veth-" + e.String(), binaries: binaries, mtu: e.MTU}},
	}
}

// cryptNode is node→node through a device that encrypts.
type cryptNode struct {
	kernelPath
	cipher Cipher
}

func (c *cryptNode) Setup(ctx context.Context, family Family) (Path, error) {
	at, err := c.stand(ctx, c.cipher, family)
	if err != nil {
		return Path{}, err
	}
	for i, node := range []string{"a", "b"} {
		host := c.prefix + node
		err := ip(ctx,
			fmt.Sprintf("-n %s address add %s/%d dev %s %s", host, at.pod[i], at.bits, cryptDevice, nodad(at)),
			fmt.Sprintf("-n %s route add %s/%d dev %s", host, at.pod[1-i], at.bits, cryptDevice))
		if err != nil {
			return Path{}, err
		}
	}
	path, err := c.path("a", "b", at.pod[1])
	return path, errors.Join(err, encryptsBy(ctx, path, c.prefix+"a", cryptDevice))
}

// stand makes two nodes and their devices that encrypt.
func (k *kernelPath) stand(ctx context.Context, with Cipher, family Family) (addressing, error) {
	k.prefix = fmt.Sprintf("mybench-%d-%s%s-", os.Getpid(), k.name, family.suffix())
	at := family.addressing()
	if err := k.namespaces(ctx, "a", "b"); err != nil {
		return at, err
	}
	if err := k.wire(ctx, IPv4.addressing()); err != nil {
		return at, err
	}
	return at, k.encrypt(ctx, with)
}

// cryptRedirect is pod→pod with the shortest programs there are: what a pod sends goes into the device, what that has
// decrypted into the pod, with the link-layer header that the pod's link needs and the device's packets lack.
type cryptRedirect struct {
	redirectPath
	cipher Cipher
}

func (c *cryptRedirect) Setup(ctx context.Context, family Family) (Path, error) {
	at, err := c.stand(ctx, c.cipher, family)
	if err == nil {
		err = c.namespaces(ctx, "ap", "bp")
	}
	if err != nil {
		return Path{}, err
	}
	for i, node := range []string{"a", "b"} {
		if err := errors.Join(c.pod(ctx, at, i, node), c.hang(ctx, at, node)); err != nil {
			return Path{}, fmt.Errorf("redirect on node %s: %w", node, err)
		}
	}
	path, err := c.path("ap", "bp", at.pod[1])
	return path, errors.Join(err, encryptsBy(ctx, path, c.prefix+"a", cryptDevice))
}

// hang attaches the programs. From IPsec's device bpf_redirect leads to pods, as in Myelin: packets that have been
// decrypted would be dropped in the pod's network namespace otherwise (docs/adr/0034).
func (c *cryptRedirect) hang(ctx context.Context, at addressing, node string) error {
	host := c.prefix + node
	podMAC, _, err1 := device(host+"p", "eth0")
	linkMAC, pod, err2 := device(host, "pod0")
	_, crypt, err3 := device(host, cryptDevice)
	err := errors.Join(err1, err2, err3)
	if err != nil {
		return err
	}
	for _, link := range [][2]string{{host, "pod0"}, {host + "p", "eth0"}} {
		if err := ip(ctx, fmt.Sprintf("-n %s link set %s mtu %d", link[0], link[1], c.mtu-overhead)); err != nil {
			return err
		}
	}
	if err := gatewayIs(ctx, at, host, linkMAC); err != nil {
		return err
	}
	how, push := asm.FnRedirectPeer, asm.FnSkbChangeHead
	if c.cipher == IPsec {
		how, push = asm.FnRedirect, asm.FnSkbPullData // XFRM leaves the link-layer header of the encrypted packet
	}
	return inNetns(host, func() error {
		return errors.Join(c.attach(pod, redirect(asm.FnRedirect, crypt), false),
			c.attach(crypt, append(linkHeader(podMAC, linkMAC, at, push), redirect(how, pod)...), false))
	})
}

// linkHeader writes an Ethernet header, for which push has made room, and drops the packet where that fails.
func linkHeader(to, from net.HardwareAddr, at addressing, push asm.BuiltinFunc) asm.Instructions {
	ethertype := uint16(unix.ETH_P_IP)
	if at.bits == 128 {
		ethertype = unix.ETH_P_IPV6
	}
	header := binary.BigEndian.AppendUint16(append(append([]byte(nil), to...), from...), ethertype)
	// offsets in struct __sk_buff of linux/bpf.h
	const data, dataEnd = 76, 80
	const drop, pass = "drop", "pass"
	return asm.Instructions{
		asm.Mov.Reg(asm.R6, asm.R1),
		asm.Mov.Imm(asm.R2, int32(len(header))), asm.Mov.Imm(asm.R3, 0), push.Call(),
		asm.JNE.Imm(asm.R0, 0, drop),
		asm.LoadMem(asm.R1, asm.R6, data, asm.Word), asm.LoadMem(asm.R2, asm.R6, dataEnd, asm.Word),
		asm.Mov.Reg(asm.R3, asm.R1), asm.Add.Imm(asm.R3, int32(len(header))),
		asm.JLE.Reg(asm.R3, asm.R2, pass),
		asm.Mov.Imm(asm.R0, 2).WithSymbol(drop), asm.Return(), // TC_ACT_SHOT
		asm.LoadImm(asm.R2, int64(binary.NativeEndian.Uint64(header)), asm.DWord).WithSymbol(pass),
		asm.StoreMem(asm.R1, 0, asm.R2, asm.DWord),
		asm.StoreImm(asm.R1, 8, int64(int32(binary.NativeEndian.Uint32(header[8:]))), asm.Word),
		asm.StoreImm(asm.R1, 12, int64(binary.NativeEndian.Uint16(header[12:])), asm.Half),
	}
}

// encryptedAgents is pod→pod with agents that encrypt.
type encryptedAgents struct {
	agentPath
	cipher  Cipher
	stopped bool // the agents are
}

func (e *encryptedAgents) Setup(ctx context.Context, family Family) (Path, error) {
	e.values = map[string]any{"ipv6.enabled": true, "hubble.enabled": false, "autoDirectNodeRoutes": true,
		"encryption.enabled": true, "encryption.type": string(e.cipher)}
	by := "myelin_wg0"
	if e.cipher == IPsec {
		by = "myelin_ipsec0"
		e.prepare = func(dir string) error { return e.key(dir) }
	}
	path, err := e.agentPath.Setup(ctx, family)
	if err != nil {
		return path, err
	}
	if err := encryptsBy(ctx, path, e.lab.Node("node1").NetnsName(), by); err != nil {
		return path, err
	}
	e.stopped = true
	return path, e.signal(unix.SIGSTOP)
}

// signal stops the agents while packets are measured, which need none, or lets them go on: what an idle agent does
// every second is no packet's cost, and takes some percent of a processor with 10⁹ instructions a second.
func (e *encryptedAgents) signal(s unix.Signal) error {
	var failed []error
	for _, node := range []string{"node1", "node2"} {
		if err := unix.Kill(e.lab.Node(node).AgentProcess().PID, s); err != nil {
			failed = append(failed, fmt.Errorf("signal the agent of %s: %w", node, err))
		}
	}
	return errors.Join(failed...)
}

func (e *encryptedAgents) Teardown(ctx context.Context) error {
	var err error
	if e.stopped {
		e.stopped, err = false, e.signal(unix.SIGCONT)
	}
	return errors.Join(err, e.agentPath.Teardown(ctx))
}

// key makes the nodes' secret.
func (e *encryptedAgents) key(dir string) error {
	key := make([]byte, aeadKey)
	if _, err := rand.Read(key); err != nil {
		return err
	}
	e.values["encryption.ipsec.mountPath"] = dir
	return os.WriteFile(filepath.Join(dir, "keys"), fmt.Appendf(nil, "1+ rfc4106(gcm(aes)) %s 128\n",
		hex.EncodeToString(key)), 0o600)
}

// encryptsBy waits until what the client sends leaves its node by the device.
func encryptsBy(ctx context.Context, path Path, node, by string) error {
	deadline := time.Now().Add(patience)
	for {
		before, err := sent(node, by)
		if err == nil {
			err = run(ctx, "ip", "netns", "exec", path.Client.Netns, "ping", "-c", "1", "-W", "5",
				path.Target.String())
		}
		after, err2 := sent(node, by)
		if err = errors.Join(err, err2); err == nil && after == before {
			err = errors.New("packets leave by another device")
		}
		if err == nil {
			return nil
		}
		if time.Now().After(deadline) || ctx.Err() != nil {
			return fmt.Errorf("encrypt by %s: %w", by, errors.Join(err, ctx.Err()))
		}
		time.Sleep(100 * time.Millisecond)
	}
}

// sent is how many packets have been sent by a device.
func sent(netns, name string) (packets uint64, err error) {
	err = inNetns(netns, func() error {
		l, err := netlink.LinkByName(name)
		if err == nil {
			packets = l.Attrs().Statistics.TxPackets
		}
		return err
	})
	return packets, err
}

// EncryptionRatios compares, of what was measured of ciphers, pods with nodes and with the bound.
func EncryptionRatios(family Family, measured []results.Result) []results.Result {
	c := comparison{way: "encryption", family: family, measured: measured}
	for _, e := range Encryptions() {
		pods, node, bound := "veth-"+e.String(), "node-"+e.String(), "redirect-"+e.String()
		for _, test := range []string{"rr", "crr", "stream"} {
			name, of := fmt.Sprintf("%s/vm_%s_%d", e.Cipher, test, e.MTU), bound
			if test == "stream" {
				c.add(test, pods, bound, name+"_of_bound")
				of = node
			}
			c.add(test, pods, of, name)
		}
	}
	return c.list
}
