package lab

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// Process names a process for good: a number is used again, number and start time are not.
type Process struct {
	PID   int    `json:"pid"`
	Start uint64 `json:"start"` // clock ticks since boot, field 22 of /proc/PID/stat
}

// processOf reads the start time of a live process. The zero Process is returned for one that has ended: zombies too,
// but not while threads other than the first are on their way out, with files and sockets still open.
func processOf(pid int) Process {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return Process{}
	}
	// The second field is the command's name, in brackets, and may hold anything: count from the last bracket.
	_, rest, _ := strings.Cut(string(data[max(0, strings.LastIndexByte(string(data), ')')):]), " ")
	fields := strings.Fields(rest)
	if len(fields) < 20 || fields[0] == "X" || fields[0] == "Z" && (fields[17] == "0" || fields[17] == "1") {
		return Process{}
	}
	start, err := strconv.ParseUint(fields[19], 10, 64)
	if err != nil {
		return Process{}
	}
	return Process{PID: pid, Start: start}
}

// Alive says whether the process runs still.
func (p Process) Alive() bool { return p.PID > 0 && processOf(p.PID) == p }

// signal sends sig, unless the process has ended. The handle is taken before the check, so that the number can't pass
// to another process in between.
func (p Process) signal(sig syscall.Signal) error {
	h, err := os.FindProcess(p.PID)
	if err != nil {
		return nil
	}
	defer func() { _ = h.Release() }()
	if !p.Alive() {
		return nil
	}
	if err := h.Signal(sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("signal process %d: %w", p.PID, err)
	}
	return nil
}

// startIn starts cmd in a control group and a namespace ("" means this process's).
// With hosts, that file is the process's /etc/hosts.
func startIn(netns, hosts string, cg cgroup, cmd *exec.Cmd) error {
	if err := cg.create(); err != nil {
		return err
	}
	dir, err := os.Open(string(cg))
	if err != nil {
		return fmt.Errorf("open control group: %w", err)
	}
	defer dir.Close()
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.UseCgroupFD = true
	cmd.SysProcAttr.CgroupFD = int(dir.Fd())
	if netns == "" {
		return cmd.Start()
	}
	return enter(netns, func() error {
		if hosts != "" {
			if err := mountHosts(hosts); err != nil {
				return err
			}
		}
		return cmd.Start()
	})
}

// daemon is a process that outlives its parent.
type daemon struct {
	argv []string
	env  []string
	dir  string // working directory, "/" if empty
	log  string // file that output is appended to
	cg   cgroup

	hosts string // its /etc/hosts, the machine's if empty
}

// start runs the daemon in a namespace ("" means this process's). The channel gets its exit status when it ends while
// this process lives.
func (d daemon) start(netns string) (Process, <-chan *os.ProcessState, error) {
	if err := os.MkdirAll(filepath.Dir(d.log), 0o755); err != nil {
		return Process{}, nil, err
	}
	out, err := os.OpenFile(d.log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return Process{}, nil, err
	}
	defer out.Close()
	cmd := exec.Command(d.argv[0], d.argv[1:]...)
	cmd.Env, cmd.Dir, cmd.Stdout, cmd.Stderr = d.env, d.dir, out, out
	if cmd.Dir == "" {
		cmd.Dir = "/"
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := startIn(netns, d.hosts, d.cg, cmd); err != nil {
		return Process{}, nil, fmt.Errorf("start %s: %w", d.argv[0], err)
	}
	// Read before Wait can reap it: even if it has ended, the entry is there. A zombie reads as zero, which is not
	// alive.
	p := processOf(cmd.Process.Pid)
	ended := make(chan *os.ProcessState, 1)
	go func() {
		_ = cmd.Wait() // the state says it all; output goes to a file, so there is no other error
		ended <- cmd.ProcessState
	}()
	return p, ended, nil
}

// exitCode is the status as shells count: 128 + signal when a signal ended the process.
func exitCode(s *os.ProcessState) int {
	if ws, ok := s.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
		return 128 + int(ws.Signal())
	}
	return s.ExitCode()
}

func readPID(path string) Process {
	var p Process
	if err := readJSON(path, &p); err != nil {
		return Process{} // no file or half a file: nothing that can be signalled
	}
	return p
}
