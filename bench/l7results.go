package bench

import (
	"bufio"
	"fmt"
	"net"
	"net/http"
	"os"
	"strings"
	"time"

	"myelin/bench/results"
)

// l7Results are medians. The sites are those of l7Sites.
func l7Results(sites []*l7Site) []results.Result {
	direct, ours, theirs, recorded := sites[0], sites[1], sites[2], sites[3]
	rate := func(name string, s, baseline *l7Site) results.Result {
		return results.Result{Name: "l7/" + name, Value: median(s.rps), Unit: "1/s"}.Against(median(baseline.rps))
	}
	cpuKept := results.Result{Name: "l7/cpu_kept", Value: median(direct.all), Unit: "µs"}.Against(median(ours.all))
	added := make([]float64, len(ours.p99))
	for i := range added {
		added[i] = ours.p99[i] - direct.p99[i]
	}
	return []results.Result{
		rate("http_kept", ours, direct), rate("http_kept_envoy", theirs, direct), rate("http_vs_envoy", ours, theirs),
		rate("http_kept_hubble", recorded, direct), cpuKept,
		{Name: "l7/added_p99_ms", Value: median(added), Unit: "ms"},
		{Name: "l7/cpu_us_per_request", Value: median(ours.cpu), Unit: "µs"},
		{Name: "l7/cpu_us_per_request_envoy", Value: median(theirs.cpu), Unit: "µs"},
		{Name: "l7/cpu_us_per_request_hubble", Value: median(recorded.cpu), Unit: "µs"},
	}
}

// check makes a request that the policy allows, and one that it denies: all proxies must enforce it.
func (s *l7Site) check() error {
	for path, want := range map[string]int{l7Path: http.StatusOK, "/admin": http.StatusForbidden} {
		if s.proxy == 0 {
			want = http.StatusOK
		}
		status, err := s.request(path)
		if err != nil || status != want {
			return fmt.Errorf("request %s by way of %s: status %d instead of %d: %w", path, s.name, status, want, err)
		}
	}
	return nil
}

// request returns the status of a request on a connection of its own.
func (s *l7Site) request(path string) (status int, err error) {
	var conn net.Conn
	err = inNetns(s.netns, func() (err error) {
		conn, err = net.DialTimeout("tcp", s.to.String(), 5*time.Second)
		return err
	})
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(5 * time.Second)); err != nil {
		return 0, err
	}
	if _, err := fmt.Fprintf(conn, "GET %s HTTP/1.1\r\nHost: %s\r\n\r\n", path, s.to); err != nil {
		return 0, err
	}
	response, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		return 0, err
	}
	return response.StatusCode, response.Body.Close()
}

// residentKiB is the memory of a process.
func residentKiB(pid int) (int, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(text)) {
		var kib int
		if _, err := fmt.Sscanf(line, "VmRSS: %d kB", &kib); err == nil {
			return kib, nil
		}
	}
	return 0, fmt.Errorf("process %d has no VmRSS", pid)
}
