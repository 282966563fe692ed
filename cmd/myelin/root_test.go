package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// nobodyID is the user and the group that has no rights.
const nobodyID = 65534

// Commands that need root say so in one line, and do nothing; doctor examines what it can and names the rest.
func TestWithoutRoot(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root to run a program as another user")
	}
	dir, err := os.MkdirTemp("", "myelin-noroot-") // t.TempDir is closed to other users
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	bin, hidden := filepath.Join(dir, "myelin"), filepath.Join(dir, "run")
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(hidden, 0o700); err != nil {
		t.Fatal(err)
	}
	copyProgram(t, bin)
	for args, want := range map[string]string{
		"lab status": "myelin: myelin lab status needs root, for network namespaces and the agents' " +
			"sockets\n",
		"lab up -f x": "myelin: myelin lab up needs root, for network namespaces and the agents' " +
			"sockets\n",
		"lab agent restart node1": "myelin: myelin lab agent needs root, for network namespaces and the agents' " +
			"sockets\n",
		"cleanup":                    "myelin: myelin cleanup needs root, for the kernel's routes, devices, maps ",
		"status --run-dir " + hidden: "permission denied, only root may ask\n",
		"doctor -q":                  "not, or not fully, examined are bpf,",
	} {
		t.Run(args, func(t *testing.T) {
			cmd := exec.Command(bin, strings.Fields(args)...)
			cmd.Dir = dir
			cmd.Env = []string{"COLUMNS=1000"}
			cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobodyID, Gid: nobodyID}}
			out, _ := cmd.CombinedOutput()
			if status := cmd.ProcessState.ExitCode(); status != 1 || !strings.Contains(string(out), want) {
				t.Errorf("exit status %d, want 1 with %q:\n%s", status, want, out)
			}
		})
	}
}

// copyProgram puts myelin into a file: that of MYELIN_BIN, or it is built.
func copyProgram(t *testing.T, to string) {
	t.Helper()
	if dir := os.Getenv("MYELIN_BIN"); dir != "" {
		text, err := os.ReadFile(filepath.Join(dir, "myelin"))
		if err == nil {
			err = os.WriteFile(to, text, 0o755)
		}
		if err != nil {
			t.Fatal(err)
		}
		return
	}
	if out, err := exec.Command("go", "build", "-o", to, ".").CombinedOutput(); err != nil {
		t.Fatalf("build: %v: %s", err, out)
	}
}
