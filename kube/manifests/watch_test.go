package manifests

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"myelin/cluster"
)

// start runs a source over dir until the test ends.
func start(t *testing.T, dir string) *Source {
	t.Helper()
	s := newSource(t, dir)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	return s
}

// expect waits until the nodes' podCIDRs are want ("n1=10.0.1.0/24 …"), for
// less than the rescan period: what the watch missed must not pass.
func expect(t *testing.T, s *Source, want string) {
	t.Helper()
	deadline := time.Now().Add(4 * time.Second)
	for {
		var parts []string
		seq, changed := s.Tables.Nodes.AllWatch(s.DB.ReadTxn())
		for n := range seq {
			parts = append(parts, strings.TrimSuffix(n.Name+"="+fmt.Sprint(n.PodCIDRs), "=[]"))
		}
		got := strings.NewReplacer("[", "", "]", "").Replace(strings.Join(parts, " "))
		if got == want {
			return
		}
		select {
		case <-changed:
		case <-time.After(time.Until(deadline)):
			t.Fatalf("got %q, want %q", got, want)
		}
	}
}

// stays asserts that nothing changes for a while.
func stays(t *testing.T, s *Source, want string) {
	t.Helper()
	expect(t, s, want)
	_, changed := s.Tables.Nodes.AllWatch(s.DB.ReadTxn())
	select {
	case <-changed:
		t.Fatalf("nodes changed, want %q to stay", want)
	case <-time.After(4 * patience):
	}
}

func initialized(t *testing.T, s *Source) {
	t.Helper()
	for _, wait := range []func() (bool, <-chan struct{}){
		func() (bool, <-chan struct{}) { return s.Tables.Nodes.Initialized(s.DB.ReadTxn()) },
		func() (bool, <-chan struct{}) { return s.Tables.Namespaces.Initialized(s.DB.ReadTxn()) },
		func() (bool, <-chan struct{}) { return s.Tables.Pods.Initialized(s.DB.ReadTxn()) },
	} {
		if ok, ch := wait(); !ok {
			select {
			case <-ch:
			case <-time.After(4 * time.Second):
				t.Fatal("the tables don't become initialized")
			}
		}
	}
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestWatchFile(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := filepath.Join(dir, "a.yaml")
	write(t, path, node("n1", "10.0.1.0/24"))
	s := start(t, dir)
	initialized(t, s)
	expect(t, s, "n1=10.0.1.0/24")

	write(t, path, node("n1", "10.0.2.0/24")) // truncates, then writes
	expect(t, s, "n1=10.0.2.0/24")

	write(t, path, "a: [") // bad, and good again
	stays(t, s, "n1=10.0.2.0/24")
	if n := s.Problems().NumObjects(s.DB.ReadTxn()); n != 1 {
		t.Errorf("got %d problems of a broken file, want 1", n)
	}
	write(t, path, node("n1", "10.0.3.0/24"))
	expect(t, s, "n1=10.0.3.0/24")

	// As an editor saves: the old file becomes a backup, a new one comes.
	check(t, os.Rename(path, path+"~"))
	write(t, path, node("n1", "10.0.4.0/24"))
	expect(t, s, "n1=10.0.4.0/24")

	// As a careful program saves: a new file takes the place.
	write(t, filepath.Join(dir, ".a.yaml.tmp"), node("n1", "10.0.5.0/24"))
	check(t, os.Rename(filepath.Join(dir, ".a.yaml.tmp"), path))
	expect(t, s, "n1=10.0.5.0/24")

	check(t, os.Remove(path))
	expect(t, s, "")
}

// Between truncation and writing, a file says nothing: not that all is gone.
func TestWatchSlowWriter(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := filepath.Join(dir, "a.yaml")
	write(t, path, node("n1", "10.0.1.0/24"))
	s := start(t, dir)
	expect(t, s, "n1=10.0.1.0/24")
	check(t, os.Truncate(path, 0))
	stays(t, s, "n1=10.0.1.0/24")
	write(t, path, node("n1", "10.0.2.0/24"))
	expect(t, s, "n1=10.0.2.0/24")
	// However long it is empty: it may be half of a deployment, and a policy.
	check(t, os.Truncate(path, 0))
	stays(t, s, "n1=10.0.2.0/24")
	if n := s.Problems().NumObjects(s.DB.ReadTxn()); n != 1 {
		t.Errorf("got %d problems of an empty file, want 1", n)
	}
	check(t, os.Remove(path))
	expect(t, s, "")
}

func TestWatchDirectories(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := start(t, dir)
	initialized(t, s)
	write(t, filepath.Join(dir, "x/y/a.yaml"), node("n1", "10.0.1.0/24"))
	expect(t, s, "n1=10.0.1.0/24")
	write(t, filepath.Join(dir, "x/y/a.yaml"), node("n1", "10.0.2.0/24"))
	expect(t, s, "n1=10.0.2.0/24")
	// A directory that was moved is still watched, under its new name.
	check(t, os.Rename(filepath.Join(dir, "x"), filepath.Join(dir, "z")))
	expect(t, s, "n1=10.0.2.0/24")
	write(t, filepath.Join(dir, "z/y/a.yaml"), node("n1", "10.0.3.0/24"))
	expect(t, s, "n1=10.0.3.0/24")
	// Another one that takes its place too.
	check(t, os.RemoveAll(filepath.Join(dir, "z")))
	expect(t, s, "")
	write(t, filepath.Join(dir, "z/y/a.yaml"), node("n2", "10.0.1.0/24"))
	expect(t, s, "n2=10.0.1.0/24")
	write(t, filepath.Join(dir, "z/y/b.yaml"), node("n3", "10.0.4.0/24"))
	expect(t, s, "n2=10.0.1.0/24 n3=10.0.4.0/24")
}

// The kubelet mounts a ConfigMap as links to ..data, itself a link, which it
// exchanges by a rename.
func TestWatchConfigMap(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	publish := func(version, cidr string) {
		write(t, filepath.Join(dir, version, "a.yaml"), node("n1", cidr))
		check(t, os.Symlink(version, filepath.Join(dir, "..tmp")))
		check(t, os.Rename(filepath.Join(dir, "..tmp"), filepath.Join(dir, "..data")))
	}
	publish("..v1", "10.0.1.0/24")
	check(t, os.Symlink("..data/a.yaml", filepath.Join(dir, "a.yaml")))
	s := start(t, dir)
	expect(t, s, "n1=10.0.1.0/24")
	publish("..v2", "10.0.2.0/24")
	check(t, os.RemoveAll(filepath.Join(dir, "..v1")))
	expect(t, s, "n1=10.0.2.0/24")
	publish("..v3", "10.0.3.0/24")
	expect(t, s, "n1=10.0.3.0/24")
}

// Links to files and directories elsewhere are followed, and watched there;
// links in circles, and the same directory by two names, do no harm.
func TestWatchLinks(t *testing.T) {
	t.Parallel()
	dir, elsewhere := t.TempDir(), t.TempDir()
	write(t, filepath.Join(elsewhere, "file/a.yaml"), node("n1", "10.0.1.0/24"))
	write(t, filepath.Join(elsewhere, "tree/b.yaml"), node("n2", "10.0.2.0/24"))
	check(t, os.Symlink(filepath.Join(elsewhere, "file/a.yaml"), filepath.Join(dir, "a.yaml")))
	check(t, os.Symlink(filepath.Join(elsewhere, "tree"), filepath.Join(dir, "tree")))
	check(t, os.Symlink(filepath.Join(elsewhere, "tree"), filepath.Join(dir, "tree2")))
	check(t, os.Symlink(dir, filepath.Join(dir, "circle")))
	check(t, os.Symlink("nowhere", filepath.Join(dir, "broken.yaml")))
	root := filepath.Join(t.TempDir(), "root")
	check(t, os.Symlink(dir, root))
	s := start(t, root)
	expect(t, s, "n1=10.0.1.0/24 n2=10.0.2.0/24")
	write(t, filepath.Join(elsewhere, "file/a.yaml"), node("n1", "10.0.3.0/24"))
	expect(t, s, "n1=10.0.3.0/24 n2=10.0.2.0/24")
	write(t, filepath.Join(elsewhere, "tree/c.yaml"), node("n3", "10.0.4.0/24"))
	expect(t, s, "n1=10.0.3.0/24 n2=10.0.2.0/24 n3=10.0.4.0/24")
	for p := range s.Problems().All(s.DB.ReadTxn()) {
		if p.File != "broken.yaml" {
			t.Errorf("got problem %v", p)
		}
	}
	// The root itself is exchanged.
	other := t.TempDir()
	write(t, filepath.Join(other, "a.yaml"), node("n9", "10.0.9.0/24"))
	check(t, os.Symlink(other, root+".new"))
	check(t, os.Rename(root+".new", root))
	expect(t, s, "n9=10.0.9.0/24")
}

// A directory that is missing is waited for; one that goes away later takes
// nothing with it.
func TestMissingDirectory(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "later")
	s := start(t, dir)
	deadline := time.Now().Add(4 * time.Second)
	for s.Problems().NumObjects(s.DB.ReadTxn()) == 0 {
		if time.Now().After(deadline) {
			t.Fatal("no problem of a missing directory")
		}
		time.Sleep(5 * time.Millisecond)
	}
	if ok, _ := s.Tables.Nodes.Initialized(s.DB.ReadTxn()); ok {
		t.Fatal("initialized without having read anything")
	}
	write(t, filepath.Join(dir, "a.yaml"), node("n1", "10.0.1.0/24"))
	initialized(t, s)
	expect(t, s, "n1=10.0.1.0/24")
	check(t, os.Rename(dir, dir+".away"))
	stays(t, s, "n1=10.0.1.0/24")
	check(t, os.Rename(dir+".away", dir))
	write(t, filepath.Join(dir, "a.yaml"), node("n1", "10.0.2.0/24"))
	expect(t, s, "n1=10.0.2.0/24")
	write(t, filepath.Join(dir, "a.yaml"), node("n1", "10.0.3.0/24"))
	expect(t, s, "n1=10.0.3.0/24")
}

// A FIFO must not block the source, nor a file that is too long.
func TestOddFiles(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	check(t, mkfifo(filepath.Join(dir, "fifo.yaml")))
	write(t, filepath.Join(dir, "long.yaml"), "")
	check(t, os.Truncate(filepath.Join(dir, "long.yaml"), maxFile+1))
	write(t, filepath.Join(dir, "a.yaml"), node("n1", "10.0.1.0/24"))
	s := start(t, dir)
	expect(t, s, "n1=10.0.1.0/24")
	var got []string
	for p := range s.Problems().All(s.DB.ReadTxn()) {
		got = append(got, p.Error())
	}
	want := "fifo.yaml: can't be read: is not a regular file\nlong.yaml: can't be read: is longer than 16 MiB"
	if strings.Join(got, "\n") != want {
		t.Errorf("got problems\n%s\nwant\n%s", strings.Join(got, "\n"), want)
	}
}

// The lab writes a status file for each of many Pods; each must count, and
// soon.
func TestWatchChurn(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := start(t, dir)
	initialized(t, s)
	const pods = 300
	name := func(i int) string { return filepath.Join(dir, "status", fmt.Sprintf("n1-%d.yaml", i)) }
	for i := range pods {
		write(t, name(i),
			fmt.Sprintf("{apiVersion: v1, kind: Pod, metadata: {name: p%d}, status: {podIPs: [{ip: 10.0.%d.%d}]}}",
				i, i/200, i%200+2))
	}
	await := func(want int) {
		t.Helper()
		deadline := time.Now().Add(4 * time.Second)
		for {
			seq, changed := s.Tables.Pods.AllWatch(s.DB.ReadTxn())
			n := 0
			for range seq {
				n++
			}
			if n == want {
				return
			}
			select {
			case <-changed:
			case <-time.After(time.Until(deadline)):
				t.Fatalf("got %d pods, want %d", n, want)
			}
		}
	}
	await(pods)
	began := time.Now()
	write(t, name(0), "{apiVersion: v1, kind: Pod, metadata: {name: p0}, status: {podIPs: [{ip: 10.9.9.9}]}}")
	for {
		p, _, watch, _ := s.Tables.Pods.GetWatch(s.DB.ReadTxn(), cluster.PodByKey("default", "p0"))
		if p.IPv4().String() == "10.9.9.9" {
			break
		}
		select {
		case <-watch:
		case <-time.After(4 * time.Second):
			t.Fatal("the change of one Pod was missed")
		}
	}
	t.Logf("one of %d Pods changed: seen after %s", pods, time.Since(began).Round(time.Millisecond))
	for i := range pods {
		check(t, os.Remove(name(i)))
	}
	await(0)
}

func mkfifo(path string) error { return syscall.Mkfifo(path, 0o600) }
