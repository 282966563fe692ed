package bpf

import "fmt"

// Ticks is the datapath's clock as it stands in rows: jiffies, cut to 32 bits.
// It is asked by running a small program, since no clock that user space can
// read keeps in step with it over weeks.
func Ticks() (uint64, error) { return readJiffies() }

// Settings are what the programs were loaded with. Kernel 5.5 or later.
func (d *Datapath) Settings() (Settings, error) {
	var s Settings
	if err := d.Config.Get(&s); err != nil {
		return s, fmt.Errorf("read datapath configuration: %w", err)
	}
	return s, nil
}
