// Just enough JSON to hand results to other languages.
#pragma once

#include <cstdint>
#include <cstdio>
#include <string>

namespace ascendc_host {

// Values are appended in order; the caller opens and closes objects and arrays, commas come by themselves.
class JsonWriter {
public:
    JsonWriter& Key(const char* name)
    {
        Separate();
        Quote(name);
        text_ += ':';
        fresh_ = true;
        return *this;
    }
    JsonWriter& Open(char bracket)
    {
        Separate();
        text_ += bracket;
        fresh_ = true;
        return *this;
    }
    JsonWriter& Close(char bracket)
    {
        text_ += bracket;
        fresh_ = false;
        return *this;
    }
    JsonWriter& Value(const std::string& value)
    {
        Separate();
        Quote(value);
        return *this;
    }
    JsonWriter& Value(double value)
    {
        char digits[32];
        std::snprintf(digits, sizeof digits, "%.17g", value);
        return Raw(digits);
    }
    JsonWriter& Value(int64_t value) { return Raw(std::to_string(value)); }
    JsonWriter& Value(uint64_t value) { return Raw(std::to_string(value)); }
    JsonWriter& Value(bool value) { return Raw(value ? "true" : "false"); }

    std::string Take() { return std::move(text_); }

private:
    JsonWriter& Raw(const std::string& token)
    {
        Separate();
        text_ += token;
        return *this;
    }

    void Separate()
    {
        if (!fresh_) text_ += ',';
        fresh_ = false;
    }

    void Quote(const std::string& value)
    {
        text_ += '"';
        for (const char c : value) {
            if (c == '"' || c == '\\') {
                text_ += '\\';
                text_ += c;
            } else if (static_cast<unsigned char>(c) < 0x20) {
                char escape[8];
                std::snprintf(escape, sizeof escape, "\\u%04x", c);
                text_ += escape;
            } else {
                text_ += c;
            }
        }
        text_ += '"';
    }

    std::string text_;
    bool fresh_ = true;
};

}  // namespace ascendc_host
