package ipfix

import (
	"encoding/binary"
	"time"
)

// Sizes in bytes (RFC 7011 sections 3.1 and 3.3.2).
const (
	headerSize = 16
	setSize    = 4
)

// Ids of sets of templates (RFC 7011 section 3.3.2).
const (
	setTemplate        = 2
	setOptionsTemplate = 3
)

// encoder makes messages of one transport session.
type encoder struct {
	max    int    // size of a message
	domain uint32 // observation domain
	now    func() time.Time
	send   func(message []byte, flows int) error // a message, and the flows in it

	formats  map[uint16]template
	body     []byte // of the record that is being made
	message  []byte
	set      int    // where the open set begins; 0: none is open
	setID    uint16 // of the open set
	sequence uint32 // data records that were in messages before this one
	records  int    // data records in this message
	flows    int    // those of them that are of flows
}

func newEncoder(max int, domain uint32, now func() time.Time, send func([]byte, int) error) *encoder {
	e := &encoder{max: max, domain: domain, now: now, send: send, formats: map[uint16]template{}}
	for _, t := range templates() {
		e.formats[t.id] = t
	}
	return e
}

// data adds a flow's record; a message that has no room for it is sent before.
func (e *encoder) data(r *record) error {
	id := r.template()
	e.body = e.body[:0]
	for _, f := range e.formats[id].fields {
		e.body = f.put(e.body, r)
	}
	if err := e.add(id); err != nil {
		return err
	}
	e.records++
	e.flows++
	return nil
}

// templates adds those of all records.
func (e *encoder) templates() error {
	be := binary.BigEndian
	for _, t := range templates() {
		e.body = be.AppendUint16(be.AppendUint16(e.body[:0], t.id), uint16(len(t.fields)))
		for _, f := range t.fields {
			e.body = be.AppendUint16(be.AppendUint16(e.body, f.id), f.length)
		}
		if err := e.add(setTemplate); err != nil {
			return err
		}
	}
	// Exporting process reliability statistics (RFC 7011 section 4.3) of the flows alone: the scope is
	// exportingProcessId, and what it has is notSentFlowTotalCount.
	e.body = e.body[:0]
	for _, v := range []uint16{templateLoss, 2, 1, 144, 4, 165, 8} {
		e.body = be.AppendUint16(e.body, v)
	}
	return e.add(setOptionsTemplate)
}

// loss adds how many flows were not sent since the process began.
func (e *encoder) loss(process uint32, flows uint64) error {
	e.body = binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint32(e.body[:0], process), flows)
	if err := e.add(templateLoss); err != nil {
		return err
	}
	e.records++
	return nil
}

// add adds the body as a record of a set, which is opened if the last one is another.
func (e *encoder) add(set uint16) error {
	need := len(e.body)
	if e.setID != set {
		need += setSize
	}
	if len(e.message)+need > e.max && len(e.message) > 0 {
		if err := e.flush(); err != nil {
			return err
		}
	}
	if len(e.message) == 0 {
		e.message = append(e.message, make([]byte, headerSize)...)
	}
	if e.setID != set {
		e.closeSet()
		e.set, e.setID = len(e.message), set
		e.message = binary.BigEndian.AppendUint16(e.message, set)
		e.message = append(e.message, 0, 0) // its length
	}
	e.message = append(e.message, e.body...)
	return nil
}

func (e *encoder) closeSet() {
	if e.set > 0 {
		binary.BigEndian.PutUint16(e.message[e.set+2:], uint16(len(e.message)-e.set))
	}
	e.set, e.setID = 0, 0
}

// flush sends the message, if anything is in it. One that could not be sent counts
// all the same, so that the collector sees what it misses.
func (e *encoder) flush() error {
	if len(e.message) == 0 {
		return nil
	}
	e.closeSet()
	be, m := binary.BigEndian, e.message
	be.PutUint16(m, 10) // version
	be.PutUint16(m[2:], uint16(len(m)))
	be.PutUint32(m[4:], uint32(e.now().Unix()))
	be.PutUint32(m[8:], e.sequence)
	be.PutUint32(m[12:], e.domain)
	flows := e.flows
	e.sequence += uint32(e.records)
	e.message, e.records, e.flows = m[:0], 0, 0
	return e.send(m, flows)
}
