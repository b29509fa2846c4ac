{{/* Volumes of the pod. */}}
{{- define "forebay.volumes" -}}
{{- $name := include "forebay.fullname" . -}}
{{- if .Values.cluster.enabled -}}
- name: template
  configMap:
    name: {{ $name }}
    items: [{ key: forebay.yaml, path: forebay.yaml }]
- name: config
  emptyDir: { medium: Memory, sizeLimit: 1Mi }
# All nodes' certificates; one that is not issued yet holds up its own node alone.
- name: peers
  projected:
    defaultMode: 0440
    sources:
      {{- range .Values.cluster.nodes }}
      - secret:
          name: {{ printf "%s-peer-%s" $name . }}
          optional: true
          items:
            - { key: tls.crt, path: {{ . }}/tls.crt }
            - { key: tls.key, path: {{ . }}/tls.key }
            - { key: ca.crt, path: {{ . }}/ca.crt }
      {{- end }}
{{- else -}}
- name: config
  configMap:
    name: {{ $name }}
    items: [{ key: forebay.yaml, path: forebay.yaml }]
{{- end }}
# The daemon's own socket, by which admins in the pod reach it.
- name: run
  emptyDir: { medium: Memory, sizeLimit: 1Mi }
- name: tmp
  emptyDir: { sizeLimit: 64Mi }
- name: state
  hostPath: { path: {{ .Values.state.hostPath }}, type: DirectoryOrCreate }
- name: sockets
  hostPath: { path: {{ .Values.sockets.hostPath }}, type: DirectoryOrCreate }
{{- range .Values.tiers }}
{{- if .hostPath }}
- name: tier-{{ .name }}
  hostPath: { path: {{ .hostPath }}, type: Directory }
{{- end }}
{{- end }}
{{- with .Values.api.tokenSecret }}
- name: token
  secret:
    secretName: {{ . }}
    defaultMode: 0440
    items: [{ key: token, path: token }]
{{- end }}
{{- if .Values.api.tls.enabled }}
- name: api
  secret:
    secretName: {{ $name }}-api
    defaultMode: 0440
{{- end }}
{{- if .Values.seccomp.install }}
- name: profile
  configMap:
    name: {{ $name }}
    items: [{ key: seccomp.json, path: seccomp.json }]
- name: kubelet
  hostPath:
    path: {{ printf "%s/%s" .Values.seccomp.kubeletFolder (dir .Values.seccomp.localhostProfile) | clean }}
    type: DirectoryOrCreate
{{- end }}
{{- with .Values.extraVolumes }}
{{ toYaml . }}
{{- end }}
{{- end -}}
