{{/* Steps before the daemon, each with the rights of its one job. */}}

{{/* Folders of the node become the daemon's. Those that already are stay as they are. */}}
{{- define "forebay.ownFolders" -}}
- name: own-folders
  image: {{ include "forebay.image" . | quote }}
  imagePullPolicy: {{ .Values.image.pullPolicy }}
  command: [/bin/sh, -euc]
  args:
    - |
      for folder in "$@"; do
        if [ "$(stat -c %u "$folder")" != {{ .Values.user.uid }} ]; then
          chmod 0700 "$folder"
          chown {{ .Values.user.uid }}:{{ .Values.user.gid }} "$folder"
        fi
      done
    - own-folders
    - /var/lib/forebay
    - /run/forebay-tenants
    {{- range .Values.tiers }}
    {{- if .hostPath }}
    - /cache/{{ .name }}
    {{- end }}
    {{- end }}
  resources:
    {{- include "forebay.small" . | nindent 4 }}
  securityContext:
    runAsUser: 0
    runAsGroup: 0
    runAsNonRoot: false
    {{- include "forebay.rights" . | nindent 4 }}
      add: [CHOWN]
  volumeMounts:
    - { name: state, mountPath: /var/lib/forebay }
    - { name: sockets, mountPath: /run/forebay-tenants }
    {{- range .Values.tiers }}
    {{- if .hostPath }}
    - { name: tier-{{ .name }}, mountPath: /cache/{{ .name }} }
    {{- end }}
    {{- end }}
{{- end -}}

{{/* The kubelet reads a profile when it makes the container, so a step before may bring it. */}}
{{- define "forebay.installSeccomp" -}}
- name: install-seccomp
  image: {{ include "forebay.image" . | quote }}
  imagePullPolicy: {{ .Values.image.pullPolicy }}
  command: [/bin/sh, -euc]
  args:
    - |
      cp /profile/seccomp.json "/kubelet/${1##*/}.new"
      mv "/kubelet/${1##*/}.new" "/kubelet/${1##*/}"
    - install-seccomp
    - {{ .Values.seccomp.localhostProfile }}
  resources:
    {{- include "forebay.small" . | nindent 4 }}
  securityContext:
    runAsUser: 0
    runAsGroup: 0
    runAsNonRoot: false
    {{- include "forebay.rights" . | nindent 4 }}
  volumeMounts:
    - { name: profile, mountPath: /profile, readOnly: true }
    - { name: kubelet, mountPath: /kubelet }
{{- end -}}

{{/* The configuration with the node's name and the pod's address. */}}
{{- define "forebay.nodeFile" -}}
- name: node-file
  image: {{ include "forebay.image" . | quote }}
  imagePullPolicy: {{ .Values.image.pullPolicy }}
  command: [/bin/sh, -euc]
  args:
    - |
      sed -e "s/@NODE_NAME@/$NODE_NAME/g" -e "s/@POD_ADDRESS@/$POD_IP/g" \
        /template/forebay.yaml >/etc/forebay/forebay.yaml
  env:
    - name: NODE_NAME
      valueFrom:
        fieldRef:
          fieldPath: spec.nodeName
    - name: POD_IP
      valueFrom:
        fieldRef:
          fieldPath: status.podIP
  resources:
    {{- include "forebay.small" . | nindent 4 }}
  securityContext:
    {{- include "forebay.rights" . | nindent 4 }}
  volumeMounts:
    - { name: template, mountPath: /template, readOnly: true }
    - { name: config, mountPath: /etc/forebay }
{{- end -}}

{{/* A shell and one program. */}}
{{- define "forebay.small" -}}
requests: { cpu: 10m, memory: 32Mi }
limits: { memory: 64Mi }
{{- end -}}
