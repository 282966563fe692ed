package httpproxy

import (
	"errors"
	"fmt"
	"regexp"
	"strings"

	"myelin/l7/config"
	"myelin/policy"
)

// Secrets is the data of the Secrets that rules name.
type Secrets map[policy.SecretRef]map[string][]byte

// RuleSet has the rules of one direction's policy for a flow. It does not change and may be shared.
type RuleSet struct {
	parts []part
	// http: some part has HTTP rules. serverNames: some part checks the SNI.
	http, serverNames bool
}

// part is a rule of a policy.
type part struct {
	source      *config.Part
	serverNames []*regexp.Regexp
	rules       []httpRule
	terminating *terminating
	originating *originating
}

type httpRule struct {
	method, path, host pattern
	connect            bool // names CONNECT
	headers            []headerValue
	matches            []headerMatch
}

// headerValue is a header that a request must have; with any value if the value is empty.
type headerValue struct {
	name, value string
}

type headerMatch struct {
	headerValue
	mismatch policy.Mismatch
	secret   bool // the value is a Secret's
}

// Compile compiles a rule. An error names what cannot be enforced; the set can be used nevertheless, and what is not
// enforced allows nothing.
func Compile(rule config.Rule, secrets Secrets) (*RuleSet, error) {
	set := &RuleSet{}
	var errs []error
	for i := range rule.Parts {
		p, err := compilePart(&rule.Parts[i], secrets)
		if err != nil {
			errs = append(errs, fmt.Errorf("compile %s: %w", rule.Parts[i].Origin, err))
		}
		if p == nil {
			continue
		}
		set.parts = append(set.parts, *p)
		set.http = set.http || len(rule.Parts[i].L7.HTTP) > 0
		set.serverNames = set.serverNames || len(p.serverNames) > 0
	}
	return set, errors.Join(errs...)
}

// CheckSecrets reports why what a rule says of TLS and headers cannot be enforced with the Secrets.
func CheckSecrets(l7 policy.L7, secrets Secrets) error {
	_, err := compilePart(&config.Part{L7: l7}, secrets)
	return err
}

// compilePart is nil if nothing of the part can be enforced.
func compilePart(source *config.Part, secrets Secrets) (*part, error) {
	p := &part{source: source}
	var err error
	for _, name := range source.L7.ServerNames {
		re, err := serverName(name)
		if err != nil {
			return nil, err
		}
		p.serverNames = append(p.serverNames, re)
	}
	if p.terminating, err = newTerminating(source.L7.Terminating, secrets); err != nil {
		return nil, err
	}
	if p.originating, err = newOriginating(source.L7.Originating, secrets); err != nil {
		return nil, err
	}
	var errs []error
	for i, rule := range source.L7.HTTP {
		compiled, err := compileHTTP(rule, secrets)
		if err != nil {
			errs = append(errs, fmt.Errorf("http[%d]: %w", i, err))
			continue
		}
		p.rules = append(p.rules, compiled)
	}
	return p, errors.Join(errs...)
}

func compileHTTP(rule policy.HTTPRule, secrets Secrets) (httpRule, error) {
	r := httpRule{connect: strings.Contains(rule.Method, "CONNECT")}
	var err error
	if r.method, err = compilePattern(rule.Method); err != nil {
		return r, fmt.Errorf("method: %w", err)
	}
	if r.path, err = compilePattern(rule.Path); err != nil {
		return r, fmt.Errorf("path: %w", err)
	}
	if r.host, err = compilePattern(rule.Host); err != nil {
		return r, fmt.Errorf("host: %w", err)
	}
	for _, text := range rule.Headers {
		name, value, ok := strings.Cut(text, ":")
		if !ok {
			name, value, _ = strings.Cut(text, " ")
		}
		value = strings.Trim(value, " \t")
		if !validToken(name) || !validValue(value) {
			return r, fmt.Errorf("headers: %q is not a header", text)
		}
		r.headers = append(r.headers, headerValue{name, value})
	}
	for _, match := range rule.HeaderMatches {
		compiled, err := compileHeaderMatch(match, secrets)
		if err != nil {
			return r, err
		}
		r.matches = append(r.matches, compiled)
	}
	return r, nil
}

func compileHeaderMatch(match policy.HeaderMatch, secrets Secrets) (headerMatch, error) {
	m := headerMatch{headerValue{match.Name, match.Value}, match.Mismatch, match.Secret != nil}
	if match.Secret != nil {
		data := secrets[*match.Secret]
		if len(data) != 1 {
			return m, fmt.Errorf("headerMatches: Secret %s/%s has %d values instead of one", match.Secret.Namespace,
				match.Secret.Name, len(data))
		}
		for _, value := range data {
			m.value = strings.TrimRight(string(value), "\r\n")
		}
	}
	if !validToken(m.name) || !validValue(m.value) {
		return m, fmt.Errorf("headerMatches: %q with its value is not a header", match.Name)
	}
	changes := m.mismatch == policy.MismatchAdd || m.mismatch == policy.MismatchReplace ||
		m.mismatch == policy.MismatchDelete
	if changes && framing(m.name) {
		return m, fmt.Errorf("headerMatches: %s cannot be changed", match.Name)
	}
	return m, nil
}

// framing says whether a header decides where messages end, or which host they are for. Policies do not change these.
func framing(name string) bool {
	switch kindOf(name) {
	case fieldOther, fieldContentType, fieldTrailer, fieldExpect:
		return false
	}
	return true
}
