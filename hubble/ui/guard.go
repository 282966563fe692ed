package ui

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
)

// policy lets the page load files of this server alone, and no script or style that is written into it.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; " +
	"base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

// guard refuses what is no request of the page itself: other methods than GET, requests that other sites have browsers
// send, and names that someone made an address of this server (DNS rebinding).
func (s *Server) guard(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Content-Security-Policy", policy)
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("X-Frame-Options", "DENY")
		h.Set("Referrer-Policy", "no-referrer")
		h.Set("Cross-Origin-Resource-Policy", "same-origin")
		h.Set("Cross-Origin-Opener-Policy", "same-origin")
		if r.Method != http.MethodGet && r.Method != http.MethodHead {
			h.Set("Allow", "GET, HEAD")
			s.refuse(w, http.StatusMethodNotAllowed, fmt.Errorf("%s: want GET", r.Method))
			return
		}
		if err := s.allowed(r); err != nil {
			s.refuse(w, http.StatusForbidden, err)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// allowed returns why a request is refused.
func (s *Server) allowed(r *http.Request) error {
	name := hostname(r.Host)
	if !s.known(name) {
		return fmt.Errorf("Host %q: want localhost, an address, or a name that --host gives", r.Host)
	}
	if origin := r.Header.Get("Origin"); origin != "" {
		u, err := url.Parse(origin)
		if err != nil || u.Host != r.Host {
			return fmt.Errorf("Origin %q: want http://%s", origin, r.Host)
		}
	}
	// Links from elsewhere may lead to the page, but its data are for the page.
	site := r.Header.Get("Sec-Fetch-Site")
	if strings.HasPrefix(r.URL.Path, "/api/") && site != "" && site != "same-origin" && site != "none" {
		return errors.New("Sec-Fetch-Site " + site + ": want a request of the page itself")
	}
	return nil
}

// hostname is a Host header without its port.
func hostname(host string) string {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	return strings.Trim(host, "[]")
}

// known reports whether a name can only be this server's: addresses and localhost are no names that DNS can give to
// others.
func (s *Server) known(name string) bool {
	if _, err := netip.ParseAddr(name); err == nil {
		return true
	}
	return strings.EqualFold(name, "localhost") || containsFold(s.Hosts, name)
}

func containsFold(list []string, word string) bool {
	return slices.ContainsFunc(list, func(s string) bool { return strings.EqualFold(s, word) })
}
