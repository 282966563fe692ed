package bpf

import (
	"errors"
	"fmt"
	"slices"
	"sync"
)

// replacements are programs that replace those of before on devices. They wait for Datapath.TakeOver where tables of
// flows were copied: the packets of a flow pass several devices, whose programs must use the same tables. All are
// replaced within moments.
type replacements struct {
	mu   sync.Mutex
	wait bool
	list []replacement
}

type replacement struct {
	at    string // which link or filter it is
	swap  func() error
	done  func(failed error) error // called with the error of swap when all have been replaced
	close func() error             // called at the end, also if the program is not to be replaced; nil: nothing to do
}

func (r *replacement) release() error {
	if r.close == nil {
		return nil
	}
	return r.close()
}

// later reports whether the program waits, which replaces another one. Otherwise the caller replaces it now.
func (r *replacements) later(one replacement) (bool, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.wait {
		return false, nil
	}
	err := r.without(one.at)
	r.list = append(r.list, one)
	return true, err
}

// waits reports whether programs that replace others wait.
func (r *replacements) waits() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.wait
}

// forget has programs not replace others that are detached.
func (r *replacements) forget(at ...string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.without(at...)
}

// without removes programs from the list. mu is held.
func (r *replacements) without(at ...string) (err error) {
	r.list = slices.DeleteFunc(r.list, func(one replacement) bool {
		found := slices.Contains(at, one.at)
		if found {
			err = errors.Join(err, one.release())
		}
		return found
	})
	return err
}

// run replaces the programs that wait. From then on none waits.
func (r *replacements) run() (err error) {
	r.mu.Lock()
	list := r.list
	r.wait, r.list = false, nil
	r.mu.Unlock()
	failed := make([]error, len(list))
	for i, one := range list {
		failed[i] = one.swap()
	}
	for i, one := range list {
		err = errors.Join(err, one.done(failed[i]), one.release())
	}
	return err
}

func filterOf(hook Hook, index int) string { return fmt.Sprintf("%s on %d", hook, index) }

// installFilter adds the filter, or replaces the one of before.
func (a *Attacher) installFilter(hook Hook, index int) error {
	if !a.replacements.waits() {
		return a.replaceFilter(hook, index)
	}
	there, err := hasFilter(hook, index)
	if err != nil || !there {
		return errors.Join(err, a.replaceFilter(hook, index))
	}
	later, err := a.filterLater(hook, index, func() error { return nil })
	if later || err != nil {
		return err
	}
	return a.replaceFilter(hook, index)
}

// filterLater has a filter wait, and calls end after it has been replaced.
func (a *Attacher) filterLater(hook Hook, index int, end func() error) (bool, error) {
	return a.replacements.later(replacement{
		at:   filterOf(hook, index),
		swap: func() error { return a.replaceFilter(hook, index) },
		done: func(failed error) error {
			if failed != nil {
				return failed
			}
			return end()
		},
	})
}

// linkLater has a link wait that takes the place of a filter of before.
func (a *Attacher) linkLater(hook Hook, name string, index int) (bool, error) {
	if hook == FromPodLink || !a.replacements.waits() {
		return false, nil
	}
	if there, err := hasFilter(hook, index); err != nil || !there {
		return false, err
	}
	return a.filterLater(hook, index, func() error { return a.Attach(hook, name, index) })
}
