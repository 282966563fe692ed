package options

import (
	"bytes"
	"encoding/json"
	"fmt"
	"path/filepath"
	"time"

	flowpb "github.com/cilium/cilium/api/v1/flow"
	"google.golang.org/protobuf/encoding/protojson"
	"sigs.k8s.io/yaml"

	"myelin/hubble/mask"
)

// What files of flows have unless they say otherwise, as with Cilium.
const (
	defaultMaxSizeMB  = 10
	defaultMaxBackups = 5
)

// File is one file that flows are written to.
type File struct {
	Name string
	Path string // absolute, or "stdout"
	// Mask are the fields of flows that are written; empty: all.
	Mask []string
	// Allow and Deny select flows; an empty Allow selects all.
	Allow, Deny []*flowpb.FlowFilter
	MaxSizeMB   int // from which a file is rotated, in MiB
	MaxBackups  int // rotated files that are kept; 0: all
	Compress    bool
	End         time.Time // after which nothing is written; zero: never
}

// Filters reads FlowFilters, each a JSON object as in hubble.export.static.allowList.
// The error names the item.
func Filters(items []string) ([]*flowpb.FlowFilter, error) {
	var list []*flowpb.FlowFilter
	for _, item := range items {
		f, err := filter([]byte(item))
		if err != nil {
			return nil, fmt.Errorf("%s: %w", item, err)
		}
		list = append(list, f)
	}
	return list, nil
}

func filter(data []byte) (*flowpb.FlowFilter, error) {
	f := &flowpb.FlowFilter{}
	if err := protojson.Unmarshal(data, f); err != nil {
		return nil, fmt.Errorf("is not a FlowFilter: %w", err)
	}
	return f, nil
}

// flowLog is a file in the form of hubble.export.dynamic.config.content.
type flowLog struct {
	Name                string            `json:"name"`
	FilePath            string            `json:"filePath"`
	FieldMask           []string          `json:"fieldMask"`
	FieldAggregate      []string          `json:"fieldAggregate"`
	AggregationInterval string            `json:"aggregationInterval"`
	IncludeFilters      []json.RawMessage `json:"includeFilters"`
	ExcludeFilters      []json.RawMessage `json:"excludeFilters"`
	FileMaxSizeMB       int               `json:"fileMaxSizeMb"`
	FileMaxBackups      int               `json:"fileMaxBackups"`
	FileCompress        bool              `json:"fileCompress"`
	End                 *time.Time        `json:"end"`
}

// Dynamic reads the file of dynamic exporters: YAML with a list "flowLogs". The
// error names the exporter and the field.
func Dynamic(data []byte) ([]File, error) {
	raw, err := yaml.YAMLToJSONStrict(data)
	if err != nil {
		return nil, fmt.Errorf("read YAML: %w", err)
	}
	var content struct {
		FlowLogs []flowLog `json:"flowLogs"`
	}
	d := json.NewDecoder(bytes.NewReader(raw))
	d.DisallowUnknownFields()
	if err := d.Decode(&content); err != nil {
		return nil, fmt.Errorf("read flowLogs: %w", err)
	}
	var files []File
	for i, l := range content.FlowLogs {
		f, err := l.file()
		if err != nil {
			return nil, fmt.Errorf("flowLogs[%d] %s: %w", i, l.Name, err)
		}
		for _, o := range files {
			switch {
			case o.Name == f.Name:
				return nil, fmt.Errorf("flowLogs[%d] %s: name: is another one's too", i, l.Name)
			case o.Path == f.Path && f.Path != "stdout":
				return nil, fmt.Errorf("flowLogs[%d] %s: filePath: %s is that of %s too", i, l.Name, f.Path, o.Name)
			}
		}
		files = append(files, f)
	}
	return files, nil
}

func (l *flowLog) file() (File, error) {
	f := File{Name: l.Name, Path: l.FilePath, Mask: l.FieldMask, MaxSizeMB: l.FileMaxSizeMB,
		MaxBackups: l.FileMaxBackups, Compress: l.FileCompress}
	switch {
	case l.Name == "":
		return f, fmt.Errorf("name: is missing")
	case checkFilePath(l.FilePath) != nil:
		return f, fmt.Errorf("filePath: %w", checkFilePath(l.FilePath))
	case len(l.FieldAggregate) > 0:
		return f, fmt.Errorf("fieldAggregate: not yet: flows are aggregated by the datapath only")
	case l.FileMaxSizeMB < 0 || l.FileMaxBackups < 0:
		return f, fmt.Errorf("fileMaxSizeMb and fileMaxBackups: must not be negative")
	}
	if f.MaxSizeMB == 0 {
		f.MaxSizeMB = defaultMaxSizeMB
	}
	if f.MaxBackups == 0 {
		f.MaxBackups = defaultMaxBackups
	}
	if l.End != nil {
		f.End = *l.End
	}
	if _, err := mask.New(l.FieldMask); err != nil {
		return f, fmt.Errorf("fieldMask: %w", err)
	}
	var err error
	if f.Allow, err = rawFilters(l.IncludeFilters); err != nil {
		return f, fmt.Errorf("includeFilters: %w", err)
	}
	if f.Deny, err = rawFilters(l.ExcludeFilters); err != nil {
		return f, fmt.Errorf("excludeFilters: %w", err)
	}
	return f, nil
}

func rawFilters(items []json.RawMessage) ([]*flowpb.FlowFilter, error) {
	var texts []string
	for _, i := range items {
		texts = append(texts, string(i))
	}
	return Filters(texts)
}

// checkFilePath wants a clean absolute path, or "stdout".
func checkFilePath(path string) error {
	if path != "stdout" && (!filepath.IsAbs(path) || path != filepath.Clean(path)) {
		return fmt.Errorf("%q is neither a clean absolute path nor stdout", path)
	}
	return nil
}
