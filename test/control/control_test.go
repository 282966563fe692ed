package control

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"hash/crc32"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"text/tabwriter"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
	"github.com/rogpeppe/go-internal/txtar"

	"myelin/lab"
)

// TestControl runs testdata/*.txtar, each with a lab of its own.
func TestControl(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root for network namespaces")
	}
	bin := binaries(t)
	testscript.Run(t, testscript.Params{
		Dir: "testdata",
		Setup: func(env *testscript.Env) error {
			name := labName(env.WorkDir)
			env.Vars = append(env.Vars, "LAB="+name, "MANIFESTS="+filepath.Join(lab.DefaultDir, name, "manifests"),
				"PATH="+bin+":"+os.Getenv("PATH"))
			env.Defer(func() { takeDown(t, name) })
			return nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){"lab": labCommand, "shows": shows},
	})
}

// binaries is the folder of the programs under test: $MYELIN_BIN, or they are built.
func binaries(t *testing.T) string {
	if dir := os.Getenv("MYELIN_BIN"); dir != "" {
		absolute, err := filepath.Abs(dir)
		if err != nil {
			t.Fatal(err)
		}
		return absolute
	}
	dir := t.TempDir()
	build := exec.Command("go", "build", "-o", dir, "myelin/cmd/myelin", "myelin/cmd/myelin-cni")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build the programs under test: %v: %s", err, out)
	}
	return dir
}

// labName is short, and of this process and this script alone: namespaces and devices are called by it.
func labName(workDir string) string {
	return "c" + strconv.FormatInt(int64(os.Getpid()), 36) + "x" + strconv.FormatUint(
		uint64(crc32.ChecksumIEEE([]byte(workDir))), 36)
}

func takeDown(t *testing.T, name string) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := lab.Down(ctx, "", name, nil); err != nil {
		t.Error(err)
	}
	for _, glob := range []string{"/run/netns/" + name + "*", lab.DefaultDir + "/" + name + "*"} {
		if left, _ := filepath.Glob(glob); len(left) > 0 {
			t.Errorf("left behind: %v", left)
		}
	}
}

// labCommand is "lab ARG…": `myelin lab` with the script's own lab.
func labCommand(ts *testscript.TestScript, neg bool, args []string) {
	err := ts.Exec("myelin", slices.Concat([]string{"lab", "-n", ts.Getenv("LAB")}, args)...)
	switch {
	case err != nil && !neg:
		ts.Fatalf("lab %s: %v", strings.Join(args, " "), err)
	case err == nil && neg:
		ts.Fatalf("lab %s: no error", strings.Join(args, " "))
	}
}

// patience is how long a table may take to become as wanted.
const patience = 20 * time.Second

// shows is "shows NODE WANT COMMAND…": `myelin COMMAND…` on the node prints what the file WANT has, now or soon.
func shows(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 3 {
		ts.Fatalf("usage: shows NODE WANT COMMAND…")
	}
	node, file := args[0], args[1]
	myelin := filepath.Join(filepath.SplitList(ts.Getenv("PATH"))[0], "myelin")
	command := slices.Concat([]string{"lab", "-n", ts.Getenv("LAB"), "exec", node, "--", "myelin"}, args[2:])
	want, got := stable(ts.ReadFile(file)), ""
	end := time.Now().Add(limit())
	for {
		out, err := exec.Command(myelin, command...).CombinedOutput()
		got = stable(string(out))
		if same := err == nil && got == want; same && !updates() {
			return
		} else if same || time.Now().After(end) {
			break
		}
		time.Sleep(50 * time.Millisecond)
	}
	if updates() {
		ts.Check(update(ts.Name(), file, got))
		return
	}
	ts.Fatalf("myelin %s on %s prints\n%swant\n%s", strings.Join(args[2:], " "), node, got, want)
}

// stable takes out of a table what differs between two runs (MACs, the names of pod links, numbers of identities and
// namespaces, times), and the order of rows, which a BPF map has none of. Columns are aligned anew.
func stable(text string) string {
	for _, r := range []struct{ pattern, text string }{
		{`([0-9a-f]{2}:){5}[0-9a-f]{2}`, "MAC"}, {`\bmye[a-z0-9]{8}\b`, "LINK"}, {` \([^()]* ago\)`, ""},
		{`\d{4}-\d\d-\d\dT[0-9:]+Z`, "TIME"}, {`\b655[0-9]{2}\b`, "LOCAL"}, {`netnscookie=\d+`, "netnscookie=COOKIE"},
	} {
		text = regexp.MustCompile(r.pattern).ReplaceAllString(text, r.text)
	}
	lines := strings.Split(strings.TrimSpace(text), "\n")
	slices.Sort(lines[1:])
	var aligned bytes.Buffer
	columns := tabwriter.NewWriter(&aligned, 0, 0, 3, ' ', 0)
	for _, line := range lines {
		fmt.Fprintln(columns, regexp.MustCompile(` {3,}`).ReplaceAllString(strings.TrimRight(line, " "), "\t"))
	}
	columns.Flush()
	return aligned.String()
}

// updates: `go test ./test/control -args update` writes what is printed into the scripts.
func updates() bool { return flag.Arg(0) == "update" }

// limit is short where nothing is expected to match.
func limit() time.Duration {
	if updates() {
		return 2 * time.Second
	}
	return patience
}

func update(script, file, text string) error {
	path := filepath.Join("testdata", script+".txtar")
	archive, err := txtar.ParseFile(path)
	if err != nil {
		return err
	}
	i := slices.IndexFunc(archive.Files, func(f txtar.File) bool { return f.Name == file })
	if i < 0 {
		return fmt.Errorf("%s has no file %s", path, file)
	}
	archive.Files[i].Data = []byte(text)
	return os.WriteFile(path, txtar.Format(archive), 0o644)
}
