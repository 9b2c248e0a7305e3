{{/* The start of every object's name: the release's, with `codehub` in it. */}}
{{- define "codehub.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- else if contains "codehub" .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-codehub" .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{/* Where workspaces live: the release's own namespace unless values name another. */}}
{{- define "codehub.workspacesNamespace" -}}
{{- .Values.workspaces.namespace | default .Release.Namespace -}}
{{- end -}}

{{/* What a Service, a Deployment or a policy finds the pods of one component by. Workspaces let in who has this name. */}}
{{- define "codehub.selector" -}}
app.kubernetes.io/name: codehub
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end -}}

{{- define "codehub.labels" -}}
{{ include "codehub.selector" . }}
{{ include "codehub.releaseLabels" .root }}
{{- end -}}

{{/* The trial's own stores have another name: no workspace lets them in. */}}
{{- define "codehub.trialSelector" -}}
app.kubernetes.io/name: codehub-trial
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end -}}

{{- define "codehub.trialLabels" -}}
{{ include "codehub.trialSelector" . }}
{{ include "codehub.releaseLabels" .root }}
{{- end -}}

{{- define "codehub.releaseLabels" -}}
app.kubernetes.io/part-of: codehub
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end -}}

{{/* An image by repository and tag, or by digest, which cannot be moved. */}}
{{- define "codehub.imageName" -}}
{{- if .image.digest -}}
{{- printf "%s@%s" .image.repository .image.digest -}}
{{- else -}}
{{- printf "%s:%s" .image.repository (.image.tag | default .root.Chart.AppVersion) -}}
{{- end -}}
{{- end -}}

{{- define "codehub.image" -}}
{{- include "codehub.imageName" (dict "root" . "image" .Values.image) -}}
{{- end -}}

{{- define "codehub.serviceAccount" -}}
{{- printf "%s-%s" (include "codehub.fullname" .root) .component -}}
{{- end -}}

{{- define "codehub.settingsName" -}}
{{- printf "%s-settings" (include "codehub.fullname" .) -}}
{{- end -}}

{{/* What was generated at the first install and is kept: passwords of the trial's stores, the key of people's secrets. */}}
{{- define "codehub.generatedName" -}}
{{- printf "%s-generated" (include "codehub.fullname" .) -}}
{{- end -}}

{{- define "codehub.trialName" -}}
{{- printf "%s-%s" (include "codehub.fullname" .root) .component -}}
{{- end -}}
