package tune

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// files are settings in /proc and /sys.
type files struct{ Root string }

func (f files) path(key string) string { return filepath.Join(f.Root, key) }

// Read returns the value of a file, of a choice like "none [full]" or "none (full)" the chosen word.
func (f files) Read(key string) (string, error) {
	data, err := os.ReadFile(f.path(key))
	if err != nil {
		return "", err
	}
	value := fields(string(data))
	for _, marks := range []string{"[]", "()"} {
		if _, rest, ok := strings.Cut(value, marks[:1]); ok {
			if chosen, _, ok := strings.Cut(rest, marks[1:]); ok {
				return chosen, nil
			}
		}
	}
	return value, nil
}

// Write writes a file that exists.
func (f files) Write(key, value string) error {
	file, err := os.OpenFile(f.path(key), os.O_WRONLY|os.O_TRUNC, 0)
	if err != nil {
		return err
	}
	defer file.Close()
	_, err = file.WriteString(value)
	return err
}

// Command writes by sysctl(8) where it can.
func (f files) Command(key, value string) string {
	if name, ok := strings.CutPrefix(key, "/proc/sys/"); ok && !strings.Contains(name, ".") {
		return fmt.Sprintf("sysctl -w %s='%s'", strings.ReplaceAll(name, "/", "."), value)
	}
	return fmt.Sprintf("echo '%s' > %s", value, key)
}
