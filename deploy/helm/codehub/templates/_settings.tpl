{{/* A value as the environment has it: YAML's large numbers are floats, and 1e+10 is no number of bytes. */}}
{{- define "codehub.text" -}}
{{- if and (kindIs "float64" .) (eq . (floor .)) -}}
{{- printf "%.0f" . -}}
{{- else -}}
{{- toString . -}}
{{- end -}}
{{- end -}}

{{/* Settings that other values decide, because more than the setting follows from them. */}}
{{- define "codehub.elsewhere" -}}
CODEHUB_RUNTIME: the chart's own, kubernetes
CODEHUB_API_ADDRESS: the chart's own, port 8001
CODEHUB_PROXY_ADDRESS: the chart's own, port 8000
CODEHUB_PROXY_STATUS_ADDRESS: the chart's own, port 9464
COORDINATOR_STATUS_ADDRESS: the chart's own, port 9464
CODEHUB_DATA_DIR: the image's own, /var/lib/codehub
CODEHUB_IMAGE: value image
CODEHUB_KUBERNETES_NAMESPACE: value workspaces.namespace
CODEHUB_DATABASE_URL: value database
CODEHUB_REDIS_URL: value redis
CODEHUB_SECRETS_KEYS: value secretsKeys
CODEHUB_SECRETS_KEYS_FILE: value secretsKeys
CODEHUB_CA_BUNDLE: value caBundle
CODEHUB_OIDC_CLIENT_SECRET: value secretSettings, it is a secret
CODEHUB_WEBHOOK_URL: value secretSettings, it may hold a token
AWS_ACCESS_KEY_ID: value archives
AWS_SECRET_ACCESS_KEY: value archives
{{- end -}}

{{- define "codehub.archiveUrl" -}}
{{- if .Values.trial.archives.enabled -}}
s3://codehub
{{- else -}}
{{- required "archives.url is not set: name the bucket, for example s3://codehub-archives, or set trial.archives.enabled for a trial" .Values.archives.url -}}
{{- end -}}
{{- end -}}

{{- define "codehub.scheme" -}}
{{- if and .Values.ingress.enabled (not .Values.ingress.tls.enabled) -}}http{{- else -}}https{{- end -}}
{{- end -}}

{{/* What the values say as settings; an empty one is left out, so that the program's own default holds. */}}
{{- define "codehub.derivedSettings" -}}
{{- $full := include "codehub.fullname" . -}}
{{- $archives := .Values.trial.archives.enabled -}}
{{- $pull := concat .Values.imagePullSecrets .Values.workspaces.pullSecrets | uniq -}}
{{- $hub := .Values.hosts.hub -}}
{{- $workspaces := .Values.hosts.workspaces -}}
CODEHUB_RUNTIME: kubernetes
CODEHUB_IMAGE: {{ include "codehub.image" . | quote }}
CODEHUB_WORKSPACE_IMAGE: {{ include "codehub.imageName" (dict "root" . "image" .Values.workspaceImage) | quote }}
CODEHUB_KUBERNETES_NAMESPACE: {{ include "codehub.workspacesNamespace" . | quote }}
CODEHUB_KUBERNETES_STORAGE_CLASS: {{ .Values.workspaces.storageClass | quote }}
CODEHUB_KUBERNETES_DISK_BYTES: {{ include "codehub.text" .Values.workspaces.diskBytes | quote }}
CODEHUB_KUBERNETES_ACCESS_MODE: {{ .Values.workspaces.accessMode | quote }}
CODEHUB_KUBERNETES_REACHABLE: {{ .Values.workspaces.reachable | quote }}
CODEHUB_KUBERNETES_SCHEDULING_TIMEOUT: {{ include "codehub.text" .Values.workspaces.schedulingTimeout | quote }}
CODEHUB_KUBERNETES_CREATION_TIMEOUT: {{ include "codehub.text" .Values.workspaces.creationTimeout | quote }}
CODEHUB_KUBERNETES_PULL_SECRETS: {{ join "," $pull | quote }}
CODEHUB_KUBERNETES_SERVICE_ACCOUNT: {{ printf "%s-workspaces" $full | quote }}
CODEHUB_KUBERNETES_PULL_POLICY: {{ .Values.imagePullPolicy | quote }}
CODEHUB_ARCHIVE_URL: {{ include "codehub.archiveUrl" . | quote }}
CODEHUB_ARCHIVE_PREFIX: {{ .Values.archives.prefix | quote }}
CODEHUB_S3_ENDPOINT: {{ $archives | ternary (printf "http://%s-archives.%s:9000" $full .Release.Namespace) .Values.archives.endpoint | quote }}
AWS_REGION: {{ .Values.archives.region | quote }}
CODEHUB_API_UPSTREAM: {{ printf "%s-api:8001" $full | quote }}
CODEHUB_TRUSTED_PROXIES: {{ .Values.api.trustedProxies | quote }}
CODEHUB_PROXY_TRUSTED_PROXIES: {{ .Values.proxy.trustedProxies | quote }}
CODEHUB_PUBLIC_URL: {{ not (empty $hub) | ternary (printf "%s://%s" (include "codehub.scheme" .) $hub) "" | quote }}
CODEHUB_WORKSPACE_URL: {{ not (empty $workspaces) | ternary (printf "%s://{slug}.%s/" (include "codehub.scheme" .) $workspaces) "" | quote }}
CODEHUB_CA_BUNDLE: {{ not (empty .Values.caBundle.existingConfigMap) | ternary (printf "/etc/codehub/authorities/%s" .Values.caBundle.key) "" | quote }}
{{- end -}}

{{/* All settings that are no secret: those that values say, then any that is named in `settings`, which win. */}}
{{- define "codehub.settings" -}}
{{- $elsewhere := include "codehub.elsewhere" . | fromYaml -}}
{{- range $name, $value := .Values.settings -}}
{{- if hasKey $elsewhere $name -}}
{{- fail (printf "settings.%s cannot be set there: %s" $name (get $elsewhere $name)) -}}
{{- end -}}
{{- end -}}
{{- range $name, $value := merge (dict) .Values.settings (include "codehub.derivedSettings" . | fromYaml) }}
{{- $text := include "codehub.text" $value }}
{{- if ne $text "" }}
{{ $name }}: {{ $text | quote }}
{{- end }}
{{- end }}
{{- end -}}

{{/* The parts of the generated Secret that these values use. */}}
{{- define "codehub.neededGenerated" -}}
{{- $trial := .Values.trial -}}
{{- $needed := $trial.postgresql.enabled | ternary (list "postgresPassword") list -}}
{{- $needed = $trial.redis.enabled | ternary (append $needed "redisPassword") $needed -}}
{{- $needed = $trial.archives.enabled | ternary (concat $needed (list "archivesKeyId" "archivesSecret")) $needed -}}
{{- $needed = .Values.secretsKeys.existingSecret | empty | ternary (append $needed "secretsKey") $needed -}}
{{- join ", " $needed -}}
{{- end -}}

{{/* Whether helm asks the cluster at all. An account `default` is in every namespace; one that helm is about to make has none yet. */}}
{{- define "codehub.seesCluster" -}}
{{- if or (lookup "v1" "ServiceAccount" .Release.Namespace "default") (lookup "v1" "Namespace" "" "kube-system") -}}true{{- end -}}
{{- end -}}

{{/* Refuses to generate anew what was generated before and is only not seen: nobody could open what people keep as secrets. */}}
{{- define "codehub.mayGenerate" -}}
{{- $root := .root -}}
{{- $missing := list -}}
{{- range $name := include "codehub.neededGenerated" $root | splitList ", " | compact -}}
{{- if not (hasKey $.kept $name) -}}{{- $missing = append $missing $name -}}{{- end -}}
{{- end -}}
{{- if and $missing (not $root.Values.generated.anew) -}}
{{- $secret := printf "%s/%s" $root.Release.Namespace (include "codehub.generatedName" $root) -}}
{{- $own := "name Secrets of your own (secretsKeys.existingSecret; database, redis and archives instead of trial.*)" -}}
{{- if or .kept $root.Release.IsUpgrade -}}
{{- fail (printf "the Secret %s has no %s: put it back from your copy, or %s. If it never was there, or you give up what it opened, set generated.anew=true for this upgrade. Argo CD, `helm template` and --dry-run=client never see it: %s there, or use --dry-run=server" $secret (join ", " $missing) $own $own) -}}
{{- else if not (include "codehub.seesCluster" $root) -}}
{{- fail (printf "helm does not see the cluster (Argo CD, `helm template`, --dry-run=client), so it would generate another %s for the Secret %s each time: %s, or use --dry-run=server, or set generated.anew=true for a rendering that is looked at or applied once" (join ", " $missing) $secret $own) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* What is generated: kept from before, so that an upgrade changes no password. */}}
{{- define "codehub.generated" -}}
{{- $kept := (lookup "v1" "Secret" .Release.Namespace (include "codehub.generatedName" .)).data | default dict -}}
{{- include "codehub.mayGenerate" (dict "root" . "kept" $kept) -}}
{{- range $name := list "postgresPassword" "redisPassword" "archivesSecret" }}
{{ $name }}: {{ get $kept $name | b64dec | default (randAlphaNum 40) | quote }}
{{- end }}
archivesKeyId: {{ get $kept "archivesKeyId" | b64dec | default (printf "codehub-%s" (randAlphaNum 12)) | quote }}
secretsKey: {{ get $kept "secretsKey" | b64dec | default (randBytes 32) | quote }}
{{- end -}}

{{/* Drawn once for a whole rendering: each `include` would draw other passwords. */}}
{{- define "codehub.drawn" -}}
{{- if not (hasKey .Values "_drawn") -}}
{{- $_ := set .Values "_drawn" (include "codehub.generated" . | fromYaml) -}}
{{- end -}}
{{- end -}}

{{/* Settings that are secrets and are not in a Secret of the operator's own. */}}
{{- define "codehub.secretSettings" -}}
{{- include "codehub.drawn" . -}}
{{- $drawn := .Values._drawn -}}
{{- $full := include "codehub.fullname" . -}}
{{- $found := dict -}}
{{- $elsewhere := include "codehub.elsewhere" . | fromYaml -}}
{{- range $name, $value := .Values.secretSettings -}}
{{- $decided := get $elsewhere $name -}}
{{- if and $decided (not (hasPrefix "value secretSettings" $decided)) -}}
{{- fail (printf "secretSettings.%s cannot be set there: %s" $name $decided) -}}
{{- end -}}
{{- $_ := set $found $name (include "codehub.text" $value) -}}
{{- end -}}
{{- if .Values.trial.postgresql.enabled -}}
{{- $_ := set $found "CODEHUB_DATABASE_URL" (printf "postgresql://codehub:%s@%s-postgresql:5432/codehub" $drawn.postgresPassword $full) -}}
{{- else if not .Values.database.existingSecret -}}
{{- $_ := set $found "CODEHUB_DATABASE_URL" (required "no database is named: give database.url or database.existingSecret, or set trial.postgresql.enabled for a trial" .Values.database.url) -}}
{{- end -}}
{{- if .Values.trial.redis.enabled -}}
{{- $_ := set $found "CODEHUB_REDIS_URL" (printf "redis://:%s@%s-redis:6379/0" $drawn.redisPassword $full) -}}
{{- else if not .Values.redis.existingSecret -}}
{{- $_ := set $found "CODEHUB_REDIS_URL" (required "no Redis is named: give redis.url or redis.existingSecret, or set trial.redis.enabled for a trial" .Values.redis.url) -}}
{{- end -}}
{{- if .Values.trial.archives.enabled -}}
{{- $_ := set $found "AWS_ACCESS_KEY_ID" $drawn.archivesKeyId -}}
{{- $_ := set $found "AWS_SECRET_ACCESS_KEY" $drawn.archivesSecret -}}
{{- else if .Values.archives.accessKeyId -}}
{{- $_ := set $found "AWS_ACCESS_KEY_ID" .Values.archives.accessKeyId -}}
{{- $_ := set $found "AWS_SECRET_ACCESS_KEY" .Values.archives.secretAccessKey -}}
{{- end -}}
{{- range $name, $value := $found }}
{{ $name }}: {{ $value | quote }}
{{- end }}
{{- end -}}

{{/* The secret settings of one process, by what it does: the front door keeps nothing and signs nobody in, the API alone speaks to the OpenID
provider, and whoever coordinates tells the webhook. */}}
{{- define "codehub.processSecrets" -}}
{{- $all := include "codehub.secretSettings" .root | fromYaml -}}
{{- if eq .component "proxy" -}}
{{- $all = pick $all "CODEHUB_DATABASE_URL" "CODEHUB_REDIS_URL" -}}
{{- else if eq .component "api" -}}
{{- $all = omit $all "CODEHUB_WEBHOOK_URL" -}}
{{- else -}}
{{- $all = omit $all "CODEHUB_OIDC_CLIENT_SECRET" -}}
{{- end -}}
{{- toYaml $all -}}
{{- end -}}

{{/* The data of a Secret. As `stringData` a key that is taken out of the values would stay: helm's patch does not reach it. */}}
{{- define "codehub.encoded" -}}
{{- range $name, $value := . }}
{{ $name }}: {{ $value | b64enc | quote }}
{{- else -}}
{}
{{- end }}
{{- end -}}
