package config

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// Cgroup is where the version 2 hierarchy of control groups is: where the
// configuration says so, else where it is mounted first. proc is "/proc".
func (c *Config) Cgroup(proc string) (string, error) {
	if c.Myelin.CgroupRoot != "" {
		return c.Myelin.CgroupRoot, nil
	}
	data, err := os.ReadFile(filepath.Join(proc, "self/mountinfo"))
	if err != nil {
		return "", fmt.Errorf("find cgroup2: %w", err)
	}
	for line := range strings.Lines(string(data)) {
		mount, kind, _ := strings.Cut(line, " - ")
		if fields := strings.Fields(mount); strings.HasPrefix(kind, "cgroup2 ") && len(fields) > 4 {
			return fields[4], nil
		}
	}
	return "", errors.New("find cgroup2: no such file system is mounted; set myelin.cgroupRoot")
}
