package serviceapi

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"

	"myelin/internal/durable"
)

// store keeps a JSON file for each Service.
type store struct{ dir string }

const fileSuffix = ".json"

// format is the version of the files.
const format = 1

// record is the content of a file.
type record struct {
	Version int      `json:"version"`
	Service *Service `json:"service"`
}

func (s store) path(name string) string { return filepath.Join(s.dir, name+fileSuffix) }

// write stores a Service. It is on disk when write returns without error.
func (s store) write(svc *Service) error {
	data, err := json.MarshalIndent(record{format, svc}, "", "  ")
	if err == nil {
		err = durable.Write(s.path(svc.Name), append(data, '\n'))
	}
	if err != nil {
		return fmt.Errorf("keep Service %s: %w", svc.Name, err)
	}
	return nil
}

// remove deletes the file of a Service.
func (s store) remove(name string) error {
	if err := durable.Remove(s.path(name)); err != nil {
		return fmt.Errorf("forget Service %s: %w", name, err)
	}
	return nil
}

// load reads all files; see durable.Load.
func (s store) load() (all []*Service, bad []error, err error) {
	all, bad, err = durable.Load(s.dir, fileSuffix, func(path string) (*Service, error) {
		svc, err := s.read(path)
		if err != nil {
			return nil, fmt.Errorf("read Service from %s: %w", path, err)
		}
		return svc, nil
	})
	if err != nil {
		return nil, nil, fmt.Errorf("read Services: %w", err)
	}
	return all, bad, nil
}

// read accepts only what the API would accept.
func (s store) read(path string) (*Service, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var r record
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	if err := d.Decode(&r); err != nil {
		return nil, err
	}
	if r.Version != format || r.Service == nil {
		return nil, fmt.Errorf("version: %d is not %d", r.Version, format)
	}
	if err := check(r.Service); err != nil {
		return nil, err
	}
	if s.path(r.Service.Name) != path {
		return nil, fmt.Errorf("name: %q is not that of the file", r.Service.Name)
	}
	return r.Service, nil
}
