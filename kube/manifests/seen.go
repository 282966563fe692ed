package manifests

import (
	"fmt"
	"iter"
	"os"

	"github.com/cilium/statedb"
	"github.com/cilium/statedb/index"
)

// File is a version of a file of which the objects are in the tables, or their
// problems in "manifest-problems".
type File struct {
	Name string `json:"name"` // path below the directory
	// Stamp is that of the version, as Stamp has it; empty where the file can't
	// be read.
	Stamp   string `json:"stamp,omitempty"`
	Objects int    `json:"objects"`
}

// TableHeader names the columns of TableRow.
func (*File) TableHeader() []string { return []string{"File", "Objects", "Stamp"} }

// TableRow is the row as text.
func (f *File) TableRow() []string { return []string{f.Name, fmt.Sprint(f.Objects), f.Stamp} }

// Stamp tells versions of a file apart.
func Stamp(info os.FileInfo) string { return stampOf(info).String() }

// String is empty for no version.
func (s stamp) String() string {
	if s == (stamp{}) {
		return ""
	}
	return fmt.Sprintf("%d.%d.%d.%d.%09d.%d.%09d",
		s.dev, s.ino, s.size, s.modified.Sec, s.modified.Nsec, s.attribute.Sec, s.attribute.Nsec)
}

func newFiles(db *statedb.DB) (statedb.RWTable[*File], error) {
	return statedb.NewTable(db, "manifest-files", fileNames())
}

func fileNames() statedb.Index[*File, string] {
	return statedb.Index[*File, string]{
		Name:       "name",
		FromObject: func(f *File) index.KeySet { return index.NewKeySet(index.String(f.Name)) },
		FromKey:    index.String,
		FromString: index.FromString,
		Unique:     true,
	}
}

// tell writes the rows of files that were looked at, when what they say has been
// applied. Rows of files that are gone are deleted where all were looked at.
func (s *Source) tell(looked iter.Seq[string]) {
	txn := s.DB.WriteTxn(s.seen)
	defer txn.Abort()
	changed := false
	for rel := range looked {
		f := s.files[rel]
		row := &File{Name: rel, Stamp: f.stamp.String(), Objects: len(f.docs)}
		if old, _, ok := s.seen.Get(txn, fileNames().Query(rel)); ok && *old == *row {
			continue
		}
		changed = true
		must(s.seen.Insert(txn, row))
	}
	if s.seen.NumObjects(txn) != len(s.files) {
		for _, row := range statedb.Collect(s.seen.All(txn)) {
			if s.files[row.Name] == nil {
				changed = true
				must(s.seen.Delete(txn, row))
			}
		}
	}
	if changed {
		txn.Commit()
	}
}

// must is for what can't fail: the table is in the transaction.
func must[T any](_ T, _ bool, err error) {
	if err != nil {
		panic(err)
	}
}
