package record

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"

	flowpb "github.com/cilium/cilium/api/v1/flow"
	observerpb "github.com/cilium/cilium/api/v1/observer"
	"google.golang.org/protobuf/encoding/protojson"
)

// maxLine bounds a line, in bytes: a flow takes some 2,000.
const maxLine = 4 << 20

// maxErrors bounds the lines without a flow that are reported one by one.
const maxErrors = 10

// Read calls do with each response of a recording. Lines that are none don't stop it: the error names each, by name and
// line, and is of kind *Malformed if it is about nothing else.
func Read(r io.Reader, name string, do func(*observerpb.GetFlowsResponse) error) error {
	lines := bufio.NewReaderSize(r, 64<<10)
	bad, long := &Malformed{Name: name}, tooLong(0)
	for n := 1; ; n++ {
		line, err := readLine(lines)
		if text := bytes.TrimSpace(line); len(text) > 0 {
			res, problem := parse(text)
			if errors.As(err, &long) {
				problem = err
			}
			if problem != nil {
				bad.add(n, problem)
			} else if err := do(res); err != nil {
				return err
			}
		}
		switch {
		case errors.Is(err, io.EOF):
			if bad.Lines > 0 {
				return bad
			}
			return nil
		case err != nil && !errors.As(err, &long):
			return fmt.Errorf("read %s, line %d: %w", name, n, err)
		}
	}
}

// tooLong is the error of a line that is longer than so many bytes.
type tooLong int

func (n tooLong) Error() string { return fmt.Sprintf("longer than %d bytes", int(n)) }

// readLine is the next line. The rest of one that is too long is skipped.
func readLine(r *bufio.Reader) (line []byte, err error) {
	for {
		part, err := r.ReadSlice('\n')
		if len(line) <= maxLine {
			line = append(line, part...)
		}
		switch {
		case errors.Is(err, bufio.ErrBufferFull):
		case err == nil && len(line) > maxLine:
			return line[:1], tooLong(maxLine)
		default:
			return line, err
		}
	}
}

// parse reads a response, or a flow alone.
func parse(line []byte) (*observerpb.GetFlowsResponse, error) {
	options := protojson.UnmarshalOptions{DiscardUnknown: true}
	res := &observerpb.GetFlowsResponse{}
	if err := options.Unmarshal(line, res); err != nil {
		return nil, err
	}
	if res.GetResponseTypes() != nil {
		return res, nil
	}
	flow := &flowpb.Flow{}
	if err := options.Unmarshal(line, flow); err != nil || flow.GetTime() == nil && flow.GetIP() == nil {
		return nil, errors.New("neither a flow nor what is missing of flows")
	}
	return &observerpb.GetFlowsResponse{Time: flow.GetTime(), NodeName: flow.GetNodeName(),
		ResponseTypes: &observerpb.GetFlowsResponse_Flow{Flow: flow}}, nil
}

// Malformed are lines of a file that are no flows.
type Malformed struct {
	Name  string
	Lines int
	first []string
}

func (m *Malformed) add(line int, err error) {
	if m.Lines++; len(m.first) < maxErrors {
		m.first = append(m.first, fmt.Sprintf("%s:%d: %v", m.Name, line, err))
	}
}

// Error has the first lines.
func (m *Malformed) Error() string {
	var b bytes.Buffer
	for i, text := range m.first {
		if i > 0 {
			b.WriteByte('\n')
		}
		b.WriteString(text)
	}
	if more := m.Lines - len(m.first); more > 0 {
		fmt.Fprintf(&b, "\n… and %d more lines of %s", more, m.Name)
	}
	return b.String()
}
