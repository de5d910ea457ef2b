#include "findings_text.h"

#include <cstdlib>

namespace acl_emulator {
namespace {

// Reads the flat objects of the report: members are strings without nesting, numbers and booleans.
class Reader {
public:
    explicit Reader(std::string_view text) : text_(text) {}

    bool Accept(char expected)
    {
        if (text_.empty() || text_.front() != expected) return false;
        text_.remove_prefix(1);
        return true;
    }

    // A string without its quotes, or a number as it stands.
    std::string Value()
    {
        std::string value;
        if (!Accept('"')) {
            while (!text_.empty() && text_.front() != ',' && text_.front() != '}') value += Next();
            return value;
        }
        while (!text_.empty() && text_.front() != '"') value += Character();
        Accept('"');
        return value;
    }

private:
    char Next()
    {
        const char c = text_.front();
        text_.remove_prefix(1);
        return c;
    }

    char Character()
    {
        if (text_.front() != '\\' || text_.size() < 2) return Next();
        Next();
        if (text_.front() != 'u' || text_.size() < 5) return Next();
        const std::string digits(text_.substr(1, 4));
        text_.remove_prefix(5);
        return static_cast<char>(std::strtol(digits.c_str(), nullptr, 16));
    }

    std::string_view text_;
};

struct Finding {
    std::string check, file, line, call, what, remedy, count;

    std::string* Member(std::string_view name)
    {
        if (name == "check") return &check;
        if (name == "file") return &file;
        if (name == "line") return &line;
        if (name == "call") return &call;
        if (name == "what") return &what;
        if (name == "remedy") return &remedy;
        return name == "count" ? &count : nullptr;
    }

    std::string Text() const
    {
        const std::string place = file.empty() ? "kernel" : file.substr(file.rfind('/') + 1) + ":" + line + ": " + call;
        const std::string times = count == "1" ? "" : " (" + count + " times)";
        return place + ": [" + check + "] " + what + times + ". Remedy: " + remedy + ".";
    }
};

Finding ReadFinding(Reader& reader)
{
    Finding finding;
    do {
        const std::string name = reader.Value();
        reader.Accept(':');
        const std::string value = reader.Value();
        if (std::string* member = finding.Member(name)) *member = value;
    } while (reader.Accept(','));
    reader.Accept('}');
    return finding;
}

}  // namespace

std::string FindingsText(std::string_view report)
{
    constexpr std::string_view kKey = "\"findings\":[";
    std::string text;
    const size_t begin = report.find(kKey);
    Reader reader(begin == std::string_view::npos ? "" : report.substr(begin + kKey.size()));
    while (reader.Accept('{')) {
        text += (text.empty() ? "" : "\n") + ReadFinding(reader).Text();
        reader.Accept(',');
    }
    const bool completed = report.find("\"completed\":true") != std::string_view::npos;
    return text.empty() && !completed ? "the kernel did not reach its end" : text;
}

}  // namespace acl_emulator
