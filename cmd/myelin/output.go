package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strings"

	"github.com/spf13/cobra"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	"k8s.io/client-go/util/jsonpath"
	"sigs.k8s.io/yaml"
)

// output is the value of -o: the format that a command prints its result in. The zero value is text for people.
type output struct {
	format string
	path   *jsonpath.JSONPath // of format jsonpath
}

// Values of -o, and its help. jsonpath comes with a template: "jsonpath={.items}".
const (
	outputJSON     = "json"
	outputYAML     = "yaml"
	outputWide     = "wide"
	outputJSONPath = "jsonpath"

	outputFormats = outputJSON + ", " + outputYAML + ", " + outputWide + " or " + outputJSONPath + "=TEMPLATE"
)

// outputFlag adds -o with its completion. More is appended to the help.
func outputFlag(cmd *cobra.Command, o *output, more string) {
	flags := cmd.Flags()
	if cmd.HasSubCommands() || !cmd.Runnable() {
		flags = cmd.PersistentFlags()
	}
	flags.VarP(o, "output", "o", outputFormats+more)
	words := []string{outputJSON, outputYAML, outputWide, outputJSONPath + "="}
	// It fails only for flags that are not there.
	_ = cmd.RegisterFlagCompletionFunc("output", cobra.FixedCompletions(words, cobra.ShellCompDirectiveNoSpace))
}

// String is what was given, without a template. It implements pflag.Value, as Set and Type do.
func (o *output) String() string { return o.format }

// Type is the word that help has for a value.
func (*output) Type() string { return "FORMAT" }

// Set reads a value.
func (o *output) Set(text string) error {
	format, template, templated := strings.Cut(text, "=")
	switch {
	case text == "":
		*o = output{}
		return nil
	case format == outputJSONPath && template != "":
		path, err := parseJSONPath(template)
		if err != nil {
			return err
		}
		o.format, o.path = format, path
		return nil
	case format == outputJSONPath:
		return errors.New("want a template: jsonpath={.field}")
	case templated || format != outputJSON && format != outputYAML && format != outputWide:
		return errors.New("want " + outputFormats)
	}
	o.format, o.path = format, nil
	return nil
}

// bareJSONPath matches a template without braces, as kubectl takes it: "items[0].name", ".items[0].name".
var bareJSONPath = regexp.MustCompile(`^[.$\[]?[^{}]*$`)

func parseJSONPath(template string) (*jsonpath.JSONPath, error) {
	if bareJSONPath.MatchString(template) {
		if !strings.ContainsAny(template[:1], ".[$") {
			template = "." + template
		}
		template = "{" + template + "}"
	}
	path := jsonpath.New("output").AllowMissingKeys(true)
	if err := path.Parse(template); err != nil {
		return nil, fmt.Errorf("template %s: %w", template, err)
	}
	return path, nil
}

// structured reports whether the format prints objects, and not text for people.
func (o *output) structured() bool { return o.format != "" && o.format != outputWide }

// wide reports whether text is to have more columns, or more lines, than usual.
func (o *output) wide() bool { return o.format == outputWide }

// write prints v in a structured format.
func (o *output) write(w io.Writer, v any) error {
	data, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return o.writeJSON(w, data)
}

// writeJSON prints what data says in a structured format.
func (o *output) writeJSON(w io.Writer, data []byte) error {
	switch o.format {
	case outputYAML:
		text, err := yaml.JSONToYAML(data)
		if err != nil {
			return fmt.Errorf("read the agent's answer: %w", err)
		}
		_, err = w.Write(text)
		return err
	case outputJSONPath:
		var v any
		// Numbers become int64 where they can, so that filters compare them with those of a template.
		if err := utiljson.Unmarshal(data, &v); err != nil {
			return fmt.Errorf("read the agent's answer: %w", err)
		}
		if err := o.path.Execute(w, v); err != nil {
			return fmt.Errorf("-o jsonpath: %w", err)
		}
		return nil
	}
	return writeJSON(w, data)
}

// writeItem prints v as one of a stream: an object a line, a YAML document, or a line that a template makes.
func (o *output) writeItem(w io.Writer, v any) error {
	var b bytes.Buffer
	switch o.format {
	case outputYAML:
		b.WriteString("---\n")
	case outputJSON:
		return json.NewEncoder(w).Encode(v)
	}
	if err := o.write(&b, v); err != nil {
		return err
	}
	if o.format == outputJSONPath && !bytes.HasSuffix(b.Bytes(), []byte("\n")) {
		b.WriteByte('\n')
	}
	_, err := b.WriteTo(w)
	return err
}
