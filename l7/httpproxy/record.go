package httpproxy

import (
	"slices"
	"strings"
	"time"

	"myelin/l7/config"
)

// TraceHeader is the header with the ID of a request's trace (W3C Trace Context).
const TraceHeader = "traceparent"

// Record is what happened to a request, or to a TLS connection that is not terminated.
type Record struct {
	// Time is when the request had arrived, and Latency how long its response took from then on.
	Time    time.Time
	Latency time.Duration
	// Protocol is "HTTP/1.0", "HTTP/1.1", "HTTP/2" or "TLS".
	Protocol           string
	Method, Path, Host string
	// TLS: the client's connection is TLS. ServerName is its SNI.
	TLS        bool
	ServerName string
	// Headers are the request's headers that the proxy is to record.
	Headers []Header
	// Mismatches are headers that rules want otherwise; without values where that is a Secret's.
	Mismatches []HeaderMismatch
	// Status is that of the response; 0: there was none.
	Status int
	// Local: the proxy made the response.
	Local bool
	// Denied is the index of the rule set that denied the request; -1: none did.
	Denied int
	// Parts are the rules that allowed it, by the index of their set.
	Parts [2]*config.Part
}

// URL is the request's, made of its scheme, host and path.
func (r *Record) URL() string {
	scheme := "http://"
	if r.TLS {
		scheme = "https://"
	}
	return scheme + r.Host + r.Path
}

// record begins a record of a request; nil if there are none. It copies the strings.
func (s *session) record(req *Request, protocol string, d *decision, now time.Time) *Record {
	if s.flow.Count != nil {
		s.flow.Count(d.denied < 0)
	}
	if s.flow.Record == nil || s.flow.Recorded != nil && !s.flow.Recorded() {
		return nil
	}
	all := strings.Builder{}
	all.Grow(len(req.Method) + len(req.Path) + len(req.Host) + len(protocol))
	all.WriteString(req.Method)
	all.WriteString(req.Path)
	all.WriteString(req.Host)
	all.WriteString(protocol)
	text, path := all.String(), len(req.Method)+len(req.Path)
	host := path + len(req.Host)
	r := &Record{Time: now, Protocol: text[host:], Method: text[:len(req.Method)], Path: text[len(req.Method):path],
		Host: text[path:host], TLS: s.tls, ServerName: s.serverName, Mismatches: shown(d.mismatches),
		Denied: d.denied, Parts: d.parts}
	for _, name := range s.proxy.headers {
		for _, h := range req.Header {
			if equalFold(h.Name, name) {
				r.Headers = append(r.Headers, Header{strings.Clone(h.Name), strings.Clone(h.Value)})
			}
		}
	}
	return r
}

// shown are mismatches without the values of Secrets, and without what clients sent in their place.
func shown(list []HeaderMismatch) []HeaderMismatch {
	if !slices.ContainsFunc(list, func(m HeaderMismatch) bool { return m.secret }) {
		return list
	}
	list = slices.Clone(list)
	for i := range list {
		if list[i].secret {
			list[i].Value, list[i].Found = "", ""
		}
	}
	return list
}

// finish completes a record and hands it over.
func (s *session) finish(r *Record, status int, local bool, now time.Time) {
	if r == nil {
		return
	}
	r.Status, r.Local, r.Latency = status, local, now.Sub(r.Time)
	s.flow.Record(r)
}
