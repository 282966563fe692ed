package image

import (
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"
	"time"
)

// document is a list of what programs are made of, SPDX 2.3.
type document struct {
	Version       string         `json:"spdxVersion"`
	DataLicense   string         `json:"dataLicense"`
	ID            string         `json:"SPDXID"`
	Name          string         `json:"name"`
	Namespace     string         `json:"documentNamespace"`
	Creation      creation       `json:"creationInfo"`
	Packages      []spdxPackage  `json:"packages"`
	Relationships []relationship `json:"relationships"`
}

type creation struct {
	Created  string   `json:"created"`
	Creators []string `json:"creators"`
}

type spdxPackage struct {
	ID        string      `json:"SPDXID"`
	Name      string      `json:"name"`
	Version   string      `json:"versionInfo,omitempty"`
	Location  string      `json:"downloadLocation"`
	Analyzed  bool        `json:"filesAnalyzed"`
	Checksums []checksum  `json:"checksums,omitempty"`
	Refs      []reference `json:"externalRefs,omitempty"`
	// Comment has the sum by which Go knows a module, which is none of SPDX's.
	Comment string `json:"comment,omitempty"`
}

type checksum struct {
	Algorithm string `json:"algorithm"`
	Value     string `json:"checksumValue"`
}

type reference struct {
	Category string `json:"referenceCategory"`
	Type     string `json:"referenceType"`
	Locator  string `json:"referenceLocator"`
}

type relationship struct {
	From string `json:"spdxElementId"`
	Type string `json:"relationshipType"`
	To   string `json:"relatedSpdxElement"`
}

// sbom reads out of the programs what the linker has written into them: Go's version, modules and their versions.
func sbom(p Platform, version string, when time.Time) ([]byte, error) {
	d := document{
		Version: "SPDX-2.3", DataLicense: "CC0-1.0", ID: "SPDXRef-DOCUMENT",
		Name:     "myelin-" + version + "-linux-" + p.Arch,
		Creation: creation{Created: when.Format(time.RFC3339), Creators: []string{"Tool: myelin-image"}},
	}
	seen := map[string]bool{}
	all := sha256.New()
	for _, program := range Programs() {
		path := filepath.Join(p.Dir, program)
		data, err := os.ReadFile(path)
		if err != nil {
			return nil, fmt.Errorf("list what %s is made of: %w", program, err)
		}
		info, err := buildinfo.ReadFile(path)
		if err != nil {
			return nil, fmt.Errorf("list what %s is made of: %w", program, err)
		}
		all.Write(data)
		id := "SPDXRef-" + identifier(program)
		d.Packages = append(d.Packages, spdxPackage{
			ID: id, Name: program, Version: version, Location: "NOASSERTION",
			Checksums: []checksum{{"SHA256", fmt.Sprintf("%x", sha256.Sum256(data))}},
		})
		d.Relationships = append(d.Relationships, relationship{d.ID, "DESCRIBES", id})
		modules := append([]*debug.Module{{Path: "stdlib", Version: strings.TrimPrefix(info.GoVersion, "go")}},
			info.Deps...)
		for _, m := range modules {
			if m.Replace != nil {
				m = m.Replace
			}
			to := "SPDXRef-" + identifier(m.Path+"-"+m.Version)
			d.Relationships = append(d.Relationships, relationship{id, "CONTAINS", to})
			if seen[to] {
				continue
			}
			seen[to] = true
			d.Packages = append(d.Packages, spdxPackage{
				ID: to, Name: m.Path, Version: m.Version, Location: "NOASSERTION", Comment: m.Sum,
				Refs: []reference{{"PACKAGE-MANAGER", "purl", "pkg:golang/" + m.Path + "@" + m.Version}},
			})
		}
	}
	d.Namespace = fmt.Sprintf("urn:myelin:%s:%x", d.Name, all.Sum(nil))
	data, err := json.MarshalIndent(d, "", " ")
	return append(data, '\n'), err
}

// identifier has letters, digits, dots and hyphens only (SPDX 2.3, 7.2).
func identifier(text string) string {
	return strings.Map(func(r rune) rune {
		if r >= '0' && r <= '9' || r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r == '.' || r == '-' {
			return r
		}
		return '-'
	}, text)
}
