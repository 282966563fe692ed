package manifests

import (
	"errors"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// few refreshes the files that changed, and what they say, and nothing else: it
// costs what changed, not what there is. It reports whether that was enough. If
// not, all must be looked at: where there are links, directories changed, files
// are gone, or anything is, or becomes, wrong.
func (s *Source) few(changed map[string]bool) (again, enough bool) {
	if s.found == nil || s.found.links || !s.flawless || len(changed) == 0 {
		return false, false
	}
	files, ok := s.touched(changed)
	if !ok {
		return false, false
	}
	affected := map[slot]bool{}
	count := false
	for _, rel := range slices.Sorted(maps.Keys(files)) {
		f := s.files[rel]
		if f == nil {
			f = &file{rel: rel}
			s.files[rel] = f
		}
		unused := f.unused
		s.retract(f, affected)
		f.stamp = stamp{}
		again = f.refresh(files[rel], s.Now()) || again
		count = count || !maps.Equal(unused, f.unused)
		if !s.assert(f, affected) {
			return false, false
		}
	}
	if count {
		s.count()
	}
	if !s.update(affected) {
		return again, false
	}
	s.tell(maps.Keys(files))
	return again, true
}

// touched finds the files of paths that changed. It is false where more than
// files may have.
func (s *Source) touched(changed map[string]bool) (files map[string]location, ok bool) {
	files = map[string]location{}
	for path := range changed {
		dir, base := filepath.Split(path)
		rel, known := s.found.dirs[filepath.Clean(dir)]
		_, isDir := s.found.watched[path]
		if !known || isDir {
			return nil, false
		}
		if strings.HasPrefix(base, ".") {
			continue // never entered, and without links nothing leads there
		}
		rel = filepath.Join(rel, base)
		_, had := s.found.files[rel]
		info, err := os.Lstat(path)
		switch {
		case errors.Is(err, fs.ErrNotExist) && !had:
		case err != nil || !info.Mode().IsRegular():
			return nil, false
		case isManifest(path):
			files[rel] = location{path: path, target: path}
			s.found.files[rel] = files[rel]
		}
	}
	return files, true
}

// retract takes away what a file says.
func (s *Source) retract(f *file, affected map[slot]bool) {
	for _, d := range f.docs {
		at := slot{key: d.key, status: isStatus(f.rel)}
		affected[at] = true
		left := slices.DeleteFunc(s.copies[at], func(v version) bool { return v.file == f.rel })
		if len(left) == 0 {
			delete(s.copies, at)
		} else {
			s.copies[at] = left
		}
	}
}

// assert adds what a file says. It is false if anything of it is wrong, or
// another file says it too.
func (s *Source) assert(f *file, affected map[slot]bool) bool {
	if len(f.problems) > 0 || len(f.held) > 0 {
		return false
	}
	for _, d := range f.docs {
		at := slot{key: d.key, status: isStatus(f.rel)}
		affected[at] = true
		if d.row == nil || len(s.copies[at]) > 0 {
			return false
		}
		s.copies[at] = []version{{file: f.rel, row: d.row}}
	}
	return true
}

// update makes the tables what the objects at some places are now. It is false
// where they contradict each other, and changes nothing then.
func (s *Source) update(affected map[slot]bool) bool {
	before, after := map[slot]version{}, map[slot]version{}
	for at := range affected {
		for _, one := range []slot{{key: at.key}, {key: at.key, status: true}} { // a Pod's row is made of both
			if v, ok := s.inForce[one]; ok {
				before[one] = v
			}
			if v, ok := s.copies[one]; ok {
				after[one] = v[0]
			}
		}
	}
	have, _ := combine(before, s.Policies)
	want, conflicts := combine(after, s.Policies)
	if len(conflicts) > 0 {
		return false
	}
	have.adopt(s.applied)
	s.change(have, want, false)
	for at := range affected {
		delete(s.inForce, at)
		if v, ok := after[at]; ok {
			s.inForce[at] = v
		}
	}
	s.applied.replace(have, want)
	return true
}
