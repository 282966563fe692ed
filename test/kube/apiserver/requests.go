package apiserver

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"iter"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"
)

// Request is one to the server. Kind is what the object is written in, e.g.
// "application/json".
type Request struct {
	Method, Path, Kind string
	Object             []byte
}

// fillers is how many requests of Fill are under way at once.
const fillers = 16

// Fill makes many requests, as Admin. Those of one list follow each other, lists
// don't wait for each other.
func (s *Server) Fill(lists iter.Seq[[]Request]) {
	s.t.Helper()
	// as in Start
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true},
		MaxIdleConnsPerHost: fillers}}
	defer client.CloseIdleConnections()
	group, ctx := errgroup.WithContext(s.t.Context())
	group.SetLimit(fillers)
	for list := range lists {
		group.Go(func() error {
			for _, r := range list {
				if err := s.send(ctx, client, r); err != nil {
					return fmt.Errorf("%s %s: %w", r.Method, r.Path, err)
				}
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		s.t.Fatal(err)
	}
}

func (s *Server) send(ctx context.Context, client *http.Client, r Request) error {
	req, err := http.NewRequestWithContext(ctx, r.Method, s.URL()+r.Path, bytes.NewReader(r.Object))
	if err != nil {
		return err
	}
	req.Header.Set("Authorization", "Bearer "+Admin)
	req.Header.Set("Content-Type", r.Kind)
	res, err := client.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err == nil && res.StatusCode >= http.StatusMultipleChoices {
		err = fmt.Errorf("%s %s", res.Status, body)
	}
	return err
}

// Requests are those of Agent since the server's first start, by what was asked:
// "list pods", or "stream pods" for a watch that begins with a list.
func (s *Server) Requests() map[string]int {
	s.t.Helper()
	text, err := os.ReadFile(s.file("audit.log"))
	if err != nil {
		s.t.Fatal(err)
	}
	count := map[string]int{}
	for line := range strings.Lines(string(text)) {
		var event struct {
			Verb, RequestURI string
			ObjectRef        struct{ Resource, Name string }
		}
		if err := json.Unmarshal([]byte(line), &event); err != nil {
			s.t.Fatalf("the audit log: %v of %s", err, line)
		}
		at, err := url.Parse(event.RequestURI)
		if err != nil {
			s.t.Fatal(err)
		}
		if at.Query().Get("sendInitialEvents") == "true" {
			event.Verb = "stream"
		}
		count[strings.Join(slices.DeleteFunc([]string{event.Verb, event.ObjectRef.Resource, event.ObjectRef.Name},
			func(s string) bool { return s == "" }), " ")]++
	}
	return count
}
