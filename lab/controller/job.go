package controller

import (
	"maps"
	"slices"
	"strconv"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
)

// jobState is what has become of a Job's Pods.
type jobState struct {
	active            []*corev1.Pod
	succeeded, failed int32
	indexes           map[int]bool // completed ones, of an indexed Job
	held              map[int]bool // indexes whose Pod is there
	done, broken      bool         // it has completed; it has failed
}

func (c *Cluster) jobState(j *batchv1.Job) jobState {
	s := jobState{indexes: map[int]bool{}, held: map[int]bool{}}
	for _, pod := range c.PodsOf(j) {
		index, err := strconv.Atoi(pod.Annotations[batchv1.JobCompletionIndexAnnotation])
		switch {
		case pod.Status.Phase == corev1.PodSucceeded:
			s.succeeded++
			if err == nil {
				s.indexes[index] = true
			}
		case pod.Status.Phase == corev1.PodFailed:
			s.failed++
		case isActive(pod):
			s.active = append(s.active, pod)
			s.held[index] = err == nil
		}
	}
	if indexed(j) {
		s.succeeded = int32(len(s.indexes))
	}
	s.broken = s.failed > value(j.Spec.BackoffLimit, 6)
	switch {
	case s.broken:
	case j.Spec.Completions != nil || j.Spec.Parallelism == nil:
		s.done = s.succeeded >= value(j.Spec.Completions, 1)
	default: // a queue: the first Pod that succeeds says that there is no more work
		s.done = s.succeeded > 0 && len(s.active) == 0
	}
	return s
}

func indexed(j *batchv1.Job) bool {
	return value(j.Spec.CompletionMode, batchv1.NonIndexedCompletion) == batchv1.IndexedCompletion
}

// job runs Pods until enough have succeeded, or too many have failed.
func (p *planner) job(j *batchv1.Job) {
	s := p.jobState(j)
	parallelism := int(value(j.Spec.Parallelism, 1))
	left := parallelism
	switch {
	case s.done || s.broken || value(j.Spec.Suspend, false):
		left = 0
	case j.Spec.Completions != nil || j.Spec.Parallelism == nil:
		left = min(parallelism, int(value(j.Spec.Completions, 1)-s.succeeded))
	case s.succeeded > 0:
		left = min(parallelism, len(s.active)) // a queue that ends starts no more
	}
	if len(s.active) > left {
		p.deletePods(p.victims(s.active)[:len(s.active)-left]...)
	}
	next := 0
	for range left - len(s.active) {
		pod := newPod(j, batchv1.SchemeGroupVersion.WithKind("Job"), &j.Spec.Template, randomName(j.Name))
		if indexed(j) {
			for s.indexes[next] || s.held[next] {
				next++
			}
			setIndex(j, pod, next)
			next++
		}
		pod.Labels[batchv1.JobNameLabel], pod.Labels[batchv1.ControllerUidLabel] = j.Name, string(j.UID)
		maps.DeleteFunc(pod.Labels, func(_, v string) bool { return v == "" })
		p.addPod(pod)
	}
}

// setIndex tells a Pod of an indexed Job which one it is.
func setIndex(j *batchv1.Job, pod *corev1.Pod, index int) {
	text := strconv.Itoa(index)
	pod.Name = randomName(j.Name + "-" + text)
	pod.Annotations[batchv1.JobCompletionIndexAnnotation] = text
	pod.Labels[batchv1.JobCompletionIndexAnnotation] = text
	pod.Spec.Hostname = j.Name + "-" + text
	for _, containers := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range containers {
			env := slices.Clone(containers[i].Env)
			containers[i].Env = append(env, corev1.EnvVar{Name: "JOB_COMPLETION_INDEX", Value: text})
		}
	}
}

// jobResult is Running, Complete, Failed or Suspended.
func (c *Cluster) jobResult(j *batchv1.Job) string {
	s := c.jobState(j)
	switch {
	case s.broken:
		return "Failed"
	case s.done:
		return "Complete"
	case value(j.Spec.Suspend, false):
		return "Suspended"
	}
	return "Running"
}
