{{/* Pod Security "restricted". */}}
{{- define "codehub.podSecurity" -}}
runAsNonRoot: true
runAsUser: {{ .user }}
runAsGroup: {{ .user }}
fsGroup: {{ .user }}
fsGroupChangePolicy: OnRootMismatch
seccompProfile: {type: RuntimeDefault}
{{- end -}}

{{- define "codehub.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end -}}

{{- define "codehub.pullSecrets" -}}
{{- with .Values.imagePullSecrets }}
imagePullSecrets:
{{- range . }}
  - name: {{ . }}
{{- end }}
{{- end }}
{{- end -}}

{{/* The settings of a process: the ConfigMap, and the operator's own Secrets, of which the front door needs none. */}}
{{- define "codehub.environmentFrom" -}}
- configMapRef: {name: {{ include "codehub.settingsName" .root }}}
{{- if ne .component "proxy" }}
{{- with .root.Values.archives.existingSecret }}
- secretRef: {name: {{ . }}}
{{- end }}
{{- range .root.Values.existingSecrets }}
- secretRef: {name: {{ . }}}
{{- end }}
{{- end }}
{{- end -}}

{{/* What a process is given of the Secret of settings: each by its name, so that it has no other. */}}
{{- define "codehub.secretEnvironment" -}}
{{- $secret := include "codehub.settingsName" .root -}}
{{- range $name, $value := include "codehub.processSecrets" . | fromYaml }}
- name: {{ $name }}
  valueFrom: {secretKeyRef: {name: {{ $secret }}, key: {{ $name }}}}
{{- end }}
{{- end -}}

{{- define "codehub.addresses" -}}
{{- if and .Values.database.existingSecret (not .Values.trial.postgresql.enabled) }}
- name: CODEHUB_DATABASE_URL
  valueFrom: {secretKeyRef: {name: {{ .Values.database.existingSecret }}, key: {{ .Values.database.existingSecretKey }}}}
{{- end }}
{{- if and .Values.redis.existingSecret (not .Values.trial.redis.enabled) }}
- name: CODEHUB_REDIS_URL
  valueFrom: {secretKeyRef: {name: {{ .Values.redis.existingSecret }}, key: {{ .Values.redis.existingSecretKey }}}}
{{- end }}
{{- end -}}

{{/* The key of people's secrets: the API and the coordinator have it, the front door does not. */}}
{{- define "codehub.keys" -}}
- name: CODEHUB_SECRETS_KEYS
{{- if .Values.secretsKeys.existingSecret }}
  valueFrom: {secretKeyRef: {name: {{ .Values.secretsKeys.existingSecret }}, key: {{ .Values.secretsKeys.existingSecretKey }}}}
{{- else }}
  valueFrom: {secretKeyRef: {name: {{ include "codehub.generatedName" . }}, key: secretsKey}}
{{- end }}
{{- end -}}

{{- define "codehub.mounts" -}}
- {name: tmp, mountPath: /tmp}
- {name: data, mountPath: /var/lib/codehub}
{{- if .Values.caBundle.existingConfigMap }}
- {name: authorities, mountPath: /etc/codehub/authorities, readOnly: true}
{{- end }}
{{- with .Values.extraVolumeMounts }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "codehub.volumes" -}}
- name: tmp
  emptyDir: {sizeLimit: 256Mi}
- name: data
  emptyDir: {sizeLimit: 256Mi}
{{- with .Values.caBundle.existingConfigMap }}
- name: authorities
  configMap: {name: {{ . }}}
{{- end }}
{{- with .Values.extraVolumes }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* With a database of the release's own there is none before the pods: they wait for it, and migrate, which is safe for several at once. */}}
{{- define "codehub.waitForDatabase" -}}
{{- if .Values.trial.postgresql.enabled }}
initContainers:
  - name: migrate
    image: {{ include "codehub.image" . }}
    imagePullPolicy: {{ .Values.imagePullPolicy }}
    command: [sh, -c, "until codehub migrate; do sleep 2; done"]
    env:
      - name: CODEHUB_DATABASE_URL
        valueFrom: {secretKeyRef: {name: {{ include "codehub.settingsName" . }}, key: CODEHUB_DATABASE_URL}}
    securityContext: {{- include "codehub.containerSecurity" . | nindent 6 }}
    resources: {{- toYaml .Values.migration.resources | nindent 6 }}
    volumeMounts:
      - {name: tmp, mountPath: /tmp}
{{- end }}
{{- end -}}

{{/* One of CodeHub's three processes; the file of each says what is its own. */}}
{{- define "codehub.deployment" -}}
{{- $root := .root -}}
{{- $part := get $root.Values .component -}}
apiVersion: apps/v1
kind: Deployment
metadata:
  name: {{ include "codehub.fullname" $root }}-{{ .component }}
  labels: {{- include "codehub.labels" . | nindent 4 }}
spec:
  {{- if not (and $part.autoscaling $part.autoscaling.enabled) }}
  replicas: {{ $part.replicas }}
  {{- end }}
  revisionHistoryLimit: 3
  strategy:
    type: RollingUpdate
    rollingUpdate: {maxUnavailable: 0, maxSurge: 1}
  selector:
    matchLabels: {{- include "codehub.selector" . | nindent 6 }}
  template:
    metadata:
      labels: {{- include "codehub.labels" . | nindent 8 }}
      annotations:
        checksum/settings: {{ include "codehub.settings" $root | sha256sum }}
        checksum/secrets: {{ include "codehub.processSecrets" . | sha256sum }}
        {{- with $part.podAnnotations }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
    spec:
      serviceAccountName: {{ include "codehub.serviceAccount" . }}
      automountServiceAccountToken: true
      enableServiceLinks: false
      terminationGracePeriodSeconds: {{ .graceSeconds }}
      securityContext: {{- include "codehub.podSecurity" (dict "user" 1000) | nindent 8 }}
      {{- include "codehub.pullSecrets" $root | nindent 6 }}
      {{- with $part.priorityClassName }}
      priorityClassName: {{ . }}
      {{- end }}
      {{- with $part.nodeSelector }}
      nodeSelector: {{- toYaml . | nindent 8 }}
      {{- end }}
      {{- with $part.tolerations }}
      tolerations: {{- toYaml . | nindent 8 }}
      {{- end }}
      {{- with $part.affinity }}
      affinity: {{- toYaml . | nindent 8 }}
      {{- end }}
      topologySpreadConstraints:
        {{- range list "kubernetes.io/hostname" "topology.kubernetes.io/zone" }}
        - maxSkew: 1
          topologyKey: {{ . }}
          whenUnsatisfiable: ScheduleAnyway
          labelSelector:
            matchLabels: {{- include "codehub.selector" $ | nindent 14 }}
        {{- end }}
      {{- include "codehub.waitForDatabase" $root | nindent 6 }}
      containers:
        - name: {{ .component }}
          image: {{ include "codehub.image" $root }}
          imagePullPolicy: {{ $root.Values.imagePullPolicy }}
          args: [{{ .component }}]
          envFrom: {{- include "codehub.environmentFrom" . | nindent 12 }}
          env:
            {{- range $name, $value := .environment }}
            - {name: {{ $name }}, value: {{ $value | quote }}}
            {{- end }}
            {{- include "codehub.secretEnvironment" . | nindent 12 }}
            {{- if .keys }}
            {{- include "codehub.keys" $root | nindent 12 }}
            {{- end }}
            {{- include "codehub.addresses" $root | nindent 12 }}
          ports:
            {{- range $name, $port := .ports }}
            - {name: {{ $name }}, containerPort: {{ $port }}}
            {{- end }}
          startupProbe:
            httpGet: {path: /healthz, port: {{ .probePort }}}
            periodSeconds: 2
            timeoutSeconds: 5
            failureThreshold: 150
          livenessProbe:
            httpGet: {path: /healthz, port: {{ .probePort }}}
            periodSeconds: 10
            timeoutSeconds: 5
            failureThreshold: 6
          readinessProbe:
            httpGet: {path: /readyz, port: {{ .probePort }}}
            periodSeconds: 5
            timeoutSeconds: 10
            failureThreshold: 3
          {{- if .leavesFirst }}
          # Until every node knows that this pod takes no more connections.
          lifecycle: {preStop: {exec: {command: [sleep, "5"]}}}
          {{- end }}
          securityContext: {{- include "codehub.containerSecurity" $root | nindent 12 }}
          resources: {{- toYaml $part.resources | nindent 12 }}
          volumeMounts: {{- include "codehub.mounts" $root | nindent 12 }}
      volumes: {{- include "codehub.volumes" $root | nindent 8 }}
{{- end -}}
